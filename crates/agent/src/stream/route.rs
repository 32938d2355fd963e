//! Parses request paths into routes, as a kubelet has them.

use percent_encoding::percent_decode_str;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    Logs {
        namespace: String,
        pod: String,
        container: String,
    },
    Exec {
        namespace: String,
        pod: String,
        container: String,
    },
    Attach {
        namespace: String,
        pod: String,
        container: String,
    },
    PortForward {
        namespace: String,
        pod: String,
    },
    /// A bare connection to a port of the pod.
    Tunnel {
        namespace: String,
        pod: String,
        port: u16,
    },
    Summary,
    ResourceMetrics,
    CadvisorMetrics,
    Metrics,
    Pods,
    /// Pods as the runtime has them, whoever wanted them.
    RunningPods,
    /// A file or directory of the machine's own logs.
    HostLogs {
        path: String,
    },
    Configuration,
    Health,
}

impl Route {
    pub fn parse(path: &str) -> Option<Self> {
        let parts = path.trim_matches('/').split('/').map(|part| percent_decode_str(part).decode_utf8().ok());
        let parts: Vec<String> = parts.map(|part| part.map(String::from)).collect::<Option<_>>()?;
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        // Older clients of kubelets put the pod's uid before the container.
        let of = |namespace: &str, pod: &str, container: &str| (namespace.into(), pod.into(), container.into());
        Some(match parts[..] {
            ["containerLogs", namespace, pod, container] => {
                let (namespace, pod, container) = of(namespace, pod, container);
                Self::Logs { namespace, pod, container }
            }
            ["exec", namespace, pod, container] | ["exec", namespace, pod, _, container] => {
                let (namespace, pod, container) = of(namespace, pod, container);
                Self::Exec { namespace, pod, container }
            }
            ["attach", namespace, pod, container] | ["attach", namespace, pod, _, container] => {
                let (namespace, pod, container) = of(namespace, pod, container);
                Self::Attach { namespace, pod, container }
            }
            ["portForward", namespace, pod] | ["portForward", namespace, pod, _] => {
                Self::PortForward { namespace: namespace.into(), pod: pod.into() }
            }
            ["tunnel", namespace, pod, port] => {
                Self::Tunnel { namespace: namespace.into(), pod: pod.into(), port: port.parse().ok()? }
            }
            ["stats", "summary"] => Self::Summary,
            ["metrics", "resource"] => Self::ResourceMetrics,
            ["metrics", "cadvisor"] => Self::CadvisorMetrics,
            ["metrics"] => Self::Metrics,
            ["pods"] => Self::Pods,
            ["runningpods"] => Self::RunningPods,
            ["logs", ref path @ ..] => Self::HostLogs { path: path.join("/") },
            ["configz"] => Self::Configuration,
            ["healthz"] => Self::Health,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_paths_of_a_kubelet_are_understood() {
        let exec = Route::Exec { namespace: "shop".into(), pod: "web-0".into(), container: "nginx".into() };
        assert_eq!(Route::parse("/exec/shop/web-0/nginx"), Some(exec.clone()));
        assert_eq!(Route::parse("/exec/shop/web-0/1-2-3/nginx"), Some(exec));
        assert_eq!(
            Route::parse("/tunnel/shop/web-0/8080"),
            Some(Route::Tunnel { namespace: "shop".into(), pod: "web-0".into(), port: 8080 })
        );
        assert_eq!(Route::parse("/healthz"), Some(Route::Health));
        assert_eq!(Route::parse("/metrics/cadvisor"), Some(Route::CadvisorMetrics));
        assert_eq!(Route::parse("/runningpods/"), Some(Route::RunningPods));
        assert_eq!(Route::parse("/logs/"), Some(Route::HostLogs { path: String::new() }));
        assert_eq!(Route::parse("/logs/apt/term.log"), Some(Route::HostLogs { path: "apt/term.log".into() }));
        for nonsense in ["/", "/exec/a/b", "/tunnel/a/b/c", "/tunnel/a/b/70000", "/containerLogs/a/b/c/d"] {
            assert_eq!(Route::parse(nonsense), None, "{nonsense}");
        }
    }
}
