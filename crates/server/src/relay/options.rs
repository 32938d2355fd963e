//! Options of logs, exec, attach and port-forward: validated against the pod, and passed on to the agent.

use mainstay_api::field::{Errors, FieldError, Path};
use serde_json::{Value, json};

use crate::http::status::{ApiError, ApiResult};

/// The container that is meant. One that is not named is the only one there is.
pub fn container(pod: &Value, wanted: &str) -> ApiResult<String> {
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    let names = |list: &str| -> Vec<&str> {
        let list = pod["spec"][list].as_array().into_iter().flatten();
        list.filter_map(|container| container["name"].as_str()).collect()
    };
    let (plain, init) = (names("containers"), names("initContainers"));
    if !wanted.is_empty() {
        let known = plain.contains(&wanted) || init.contains(&wanted) || names("ephemeralContainers").contains(&wanted);
        let refused = || ApiError::bad_request(format!("container {wanted} is not valid for pod {name}"));
        return if known { Ok(wanted.to_owned()) } else { Err(refused()) };
    }
    match plain[..] {
        [only] => Ok(only.to_owned()),
        [] => Err(ApiError::bad_request(format!("a container name must be specified for pod {name}"))),
        _ => {
            let mut text =
                format!("a container name must be specified for pod {name}, choose one of: [{}]", plain.join(" "));
            if !init.is_empty() {
                text += &format!(" or one of the init containers: [{}]", init.join(" "));
            }
            Err(ApiError::bad_request(text))
        }
    }
}

/// The options of a stream or a proxied request as admission is shown them, in the kind that upstream has for each; none for logs, which
/// are read like objects. `rest` is what follows `proxy` in the path.
pub fn connect_options(kind: &str, subresource: &str, query: &str, rest: &str) -> Option<Value> {
    let name = match subresource {
        "exec" => "PodExecOptions".to_owned(),
        "attach" => "PodAttachOptions".to_owned(),
        "portforward" => "PodPortForwardOptions".to_owned(),
        "proxy" => format!("{kind}ProxyOptions"),
        _ => return None,
    };
    let mut options = json!({ "kind": name, "apiVersion": "v1" });
    if subresource == "proxy" {
        options["path"] = json!(rest);
        return Some(options);
    }
    let (mut command, mut ports) = (Vec::new(), Vec::new());
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        match (subresource, &*name) {
            ("exec", "command") => command.push(json!(value)),
            ("portforward", "ports") => ports.extend(value.split(',').filter_map(|port| port.parse::<u16>().ok())),
            ("exec" | "attach", "container") => options["container"] = json!(value),
            ("exec" | "attach", flag @ ("stdin" | "stdout" | "stderr" | "tty")) => options[flag] = json!(is_on(&value)),
            _ => {}
        }
    }
    for (name, list) in [("command", command), ("ports", ports.into_iter().map(|port| json!(port)).collect())] {
        if !list.is_empty() {
            options[name] = Value::Array(list);
        }
    }
    Some(options)
}

fn is_on(value: &str) -> bool {
    matches!(value, "" | "1" | "t" | "T" | "true" | "True" | "TRUE")
}

/// The options of a log, checked, as an agent takes them. Beside it the container asked for.
pub fn log(pod: &str, query: &str) -> ApiResult<(String, String)> {
    let mut errors = Errors::new();
    let mut container = String::new();
    let mut passed = form_urlencoded::Serializer::new(String::new());
    let (mut since_seconds, mut since_time, mut tail, mut stream) = (false, false, false, String::new());
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        let at = Path::new(&name);
        let number = || value.parse::<i64>().map_err(|_| ApiError::bad_request(syntax(&name, &value)));
        match &*name {
            "container" => {
                container = value.into_owned();
                continue;
            }
            "follow" | "previous" | "timestamps" => {}
            "tailLines" => {
                if number()? < 0 {
                    errors.push(FieldError::invalid(&at, number()?, "must be greater than or equal to 0"));
                }
                tail = true;
            }
            "limitBytes" => {
                if number()? < 1 {
                    errors.push(FieldError::invalid(&at, number()?, "must be greater than 0"));
                }
            }
            "sinceSeconds" => {
                if number()? < 1 {
                    errors.push(FieldError::invalid(&at, number()?, "must be greater than 0"));
                }
                since_seconds = true;
            }
            "sinceTime" => {
                if value.parse::<jiff::Timestamp>().is_err() {
                    return Err(ApiError::bad_request(syntax(&name, &value)));
                }
                since_time = true;
            }
            "stream" => {
                if !matches!(&*value, "" | "All" | "Stdout" | "Stderr") {
                    errors.push(FieldError::not_supported(&at, value.as_ref(), &["All", "Stderr", "Stdout"]));
                }
                stream = value.to_string();
            }
            _ => continue,
        }
        passed.append_pair(&name, &value);
    }
    if since_seconds && since_time {
        let why = "at most one of `sinceTime` or `sinceSeconds` may be specified";
        errors.push(FieldError::forbidden(&Path::new(""), why));
    }
    if tail && matches!(&*stream, "Stdout" | "Stderr") {
        let why = "`tailLines` and specific `stream` are mutually exclusive for now";
        errors.push(FieldError::forbidden(&Path::new(""), why));
    }
    if !errors.is_empty() {
        return Err(ApiError::invalid_kind("", "PodLogOptions", pod, &errors));
    }
    Ok((container, passed.finish()))
}

fn syntax(name: &str, value: &str) -> String {
    format!("query parameter {name:?}: {value:?} is not valid")
}

/// The options of exec and attach as an agent takes them, and the container asked for.
pub fn streams(query: &str) -> (String, String) {
    let mut container = String::new();
    let mut passed = form_urlencoded::Serializer::new(String::new());
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        let on = is_on(&value);
        let flag = match &*name {
            "container" => {
                container = value.into_owned();
                continue;
            }
            "command" => {
                passed.append_pair("command", &value);
                continue;
            }
            "stdin" => "input",
            "stdout" => "output",
            "stderr" => "error",
            "tty" => "tty",
            _ => continue,
        };
        if on {
            passed.append_pair(flag, "1");
        }
    }
    (container, passed.finish())
}

/// The ports a port-forward names, as an agent takes them.
pub fn ports(query: &str) -> String {
    let mut passed = form_urlencoded::Serializer::new(String::new());
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        if name == "ports" {
            passed.append_pair("port", &value);
        }
    }
    passed.finish()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused<T: std::fmt::Debug>(answer: ApiResult<T>) -> (u16, String) {
        let error = answer.expect_err("refused");
        (error.code().as_u16(), error.status()["message"].as_str().unwrap_or_default().to_owned())
    }

    #[test]
    fn a_container_is_named_or_the_only_one() {
        let one = json!({ "metadata": { "name": "web" }, "spec": { "containers": [{ "name": "a" }] } });
        assert_eq!(container(&one, "").unwrap(), "a");
        assert_eq!(refused(container(&one, "x")), (400, "container x is not valid for pod web".into()));
        let mut two = one.clone();
        two["spec"]["containers"] = json!([{ "name": "a" }, { "name": "b" }]);
        let text = "a container name must be specified for pod web, choose one of: [a b]";
        assert_eq!(refused(container(&two, "")), (400, text.into()));
        two["spec"]["initContainers"] = json!([{ "name": "i" }]);
        let text = format!("{text} or one of the init containers: [i]");
        assert_eq!(refused(container(&two, "")), (400, text));
        assert_eq!(container(&two, "i").unwrap(), "i");
    }

    #[test]
    fn options_of_logs_are_checked_and_passed_on() {
        let (container, passed) = log("web", "container=a&follow=true&tailLines=5&junk=1").unwrap();
        assert_eq!((container.as_str(), passed.as_str()), ("a", "follow=true&tailLines=5"));
        let (code, text) = refused(log("web", "tailLines=-1"));
        assert_eq!(code, 422);
        assert_eq!(
            text,
            "PodLogOptions \"web\" is invalid: tailLines: Invalid value: -1: must be greater than or equal to 0"
        );
        assert_eq!(refused(log("web", "sinceSeconds=5&sinceTime=2024-01-01T00:00:00Z")).0, 422);
        assert_eq!(refused(log("web", "tailLines=many")).0, 400);
    }

    #[test]
    fn options_of_streams_take_the_names_agents_know() {
        let (container, passed) =
            streams("command=sh&command=-c&stdin=true&stdout=1&stderr=false&tty=true&container=a");
        assert_eq!(container, "a");
        assert_eq!(passed, "command=sh&command=-c&input=1&output=1&tty=1");
        assert_eq!(ports("ports=80&ports=81"), "port=80&port=81");
    }
}
