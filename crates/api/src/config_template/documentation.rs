//! What `kubectl explain` shows of a ConfigTemplate. The facts are those of the schema table.

use std::borrow::Cow;

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
    schemars::{JsonSchema, Schema, SchemaGenerator, json_schema},
};
use serde_json::{Map, Value, json};

use super::ConfigTemplate;

/// A definition: its name after `ConfigTemplate`, what it is, and its fields.
struct Words {
    name: &'static str,
    about: &'static str,
    fields: &'static [(&'static str, &'static str)],
}

const DEFINITIONS: [Words; 20] = [
    Words {
        name: "Spec",
        about: "ConfigTemplateSpec is a template, what it reads, where its result goes, and how that reaches pods.",
        fields: &[
            (
                "consumers",
                "The pods that read the output, and what is done in them when it changes. Without any, the output is written at once.",
            ),
            ("historyLimit", "How many versions are remembered and can be returned to. Defaults to 10."),
            ("inputs", "What the template reads, each under a name. Only changes of these render it anew."),
            ("maxDelaySeconds", "How long a change waits at most for the inputs to be quiet. Defaults to 10."),
            (
                "output",
                "The ConfigMap or Secret, and its key, in which the last good version is. It cannot be changed.",
            ),
            ("paused", "No further consumer gets a new version while this is set."),
            (
                "pinnedVersion",
                "The version that consumers shall have, whatever is rendered: one of the history. `mainstay config undo` sets it, `resume` removes it.",
            ),
            ("quietSeconds", "How long inputs have to be unchanged before the template is rendered. Defaults to 1."),
            ("rollout", "In which order and how fast a new version reaches consumers, and when it is taken back."),
            ("template", "The template, in the language of Jinja2. What it names has to exist."),
            ("validate", "A command in a container of a consumer that judges a new version before anybody reads it."),
        ],
    },
    Words {
        name: "Input",
        about: "ConfigTemplateInput is something that a template reads. Exactly one of configMap, nodes, secret and service is set.",
        fields: &[
            ("configMap", "A ConfigMap of the template's namespace: its keys."),
            ("name", "The name under which the template reads it."),
            ("nodes", "Nodes: labels, addresses and facts."),
            ("optional", "If it does not exist it is none in the template, instead of an error."),
            ("secret", "A Secret of the template's namespace: its keys. The output has to be a Secret then."),
            ("service", "Services and their endpoints."),
        ],
    },
    Words {
        name: "ServiceInput",
        about: "ConfigTemplateServiceInput is one Service by name, or all that a selector matches, as a list.",
        fields: &[
            ("name", "The name of the Service."),
            ("namespace", "Its namespace; that of the template if left out. With a selector, * are all of them."),
            ("selector", "Selects Services by their labels."),
        ],
    },
    Words {
        name: "ObjectInput",
        about: "ConfigTemplateObjectInput names a ConfigMap or Secret.",
        fields: &[("name", "The name of the object, in the template's namespace.")],
    },
    Words {
        name: "NodesInput",
        about: "ConfigTemplateNodesInput selects nodes.",
        fields: &[("selector", "Selects nodes by their labels; all of them if left out.")],
    },
    Words {
        name: "Output",
        about: "ConfigTemplateOutput says where the result is written. Exactly one of configMap and secret is set.",
        fields: &[("configMap", "A key of a ConfigMap."), ("secret", "A key of a Secret.")],
    },
    Words {
        name: "OutputKey",
        about: "ConfigTemplateOutputKey is a key of an object in the template's namespace.",
        fields: &[
            ("key", "The key whose value is the result."),
            ("name", "The name of the object, which is made if it does not exist."),
        ],
    },
    Words {
        name: "Consumer",
        about: "ConfigTemplateConsumer are pods that read the output. Exactly one of selector and workload is set.",
        fields: &[
            ("onChange", "What is done in a pod when it has a new version; nothing if left out."),
            ("selector", "Selects pods of the template's namespace by their labels."),
            ("workload", "The workload that the pods belong to."),
        ],
    },
    Words {
        name: "WorkloadReference",
        about: "ConfigTemplateWorkloadReference names a workload of the template's namespace.",
        fields: &[("kind", "DaemonSet, Deployment, ReplicaSet or StatefulSet."), ("name", "The name of the workload.")],
    },
    Words {
        name: "OnChange",
        about: "ConfigTemplateOnChange is what is done in a pod when it has a new version. At most one of its fields is set.",
        fields: &[
            ("exec", "Run a command in a container."),
            ("http", "Send a request to the pod."),
            ("restart", "Evict the pod, as disruption budgets allow."),
            ("signal", "Send a signal to the first process of a container."),
        ],
    },
    Words {
        name: "SignalAction",
        about: "ConfigTemplateSignalAction sends a signal, by the program kill of the container.",
        fields: &[
            ("container", "The container; the pod's first if left out."),
            ("signal", "The signal: SIGHUP, for example."),
        ],
    },
    Words {
        name: "ExecAction",
        about: "ConfigTemplateExecAction runs a command, which has to end with 0.",
        fields: &[
            ("command", "The command and its arguments; no shell is used."),
            ("container", "The container; the pod's first if left out."),
            ("timeoutSeconds", "How long it may take. Defaults to 10."),
        ],
    },
    Words {
        name: "HTTPAction",
        about: "ConfigTemplateHTTPAction sends a request, which has to be answered with a code between 200 and 299.",
        fields: &[
            ("method", "GET, POST or PUT. Defaults to POST."),
            ("path", "The path. Defaults to /."),
            ("port", "The port of the pod."),
            ("timeoutSeconds", "How long it may take. Defaults to 10."),
        ],
    },
    Words {
        name: "Validate",
        about: "ConfigTemplateValidate is a command that reads a new version from its standard input and ends with 0 if it is good.",
        fields: &[
            ("command", "The command and its arguments; no shell is used."),
            ("container", "The container; the pod's first if left out."),
            ("timeoutSeconds", "How long it may take. Defaults to 10."),
        ],
    },
    Words {
        name: "Rollout",
        about: "ConfigTemplateRollout says in which order and how fast a new version reaches consumers.",
        fields: &[
            ("maxFailed", "How many consumers may fail before the version is taken back. Defaults to 0."),
            ("maxUnavailable", "How many consumers may be on their way or unhealthy at a time. Defaults to 25%."),
            ("progressDeadlineSeconds", "After so long without progress the version is taken back. Defaults to 600."),
            ("soakSeconds", "How long the consumers of a wave have to be healthy before the next one begins."),
            (
                "waves",
                "Shares of all consumers, each including those before: [1, \"50%\", \"100%\"]. One wave if left out.",
            ),
        ],
    },
    Words {
        name: "Status",
        about: "ConfigTemplateStatus is what became of the template.",
        fields: &[
            ("conditions", "Rendered, Progressing and Current."),
            ("consumers", "How many consumers there are, and how many have the wanted version."),
            ("history", "The last versions, the newest first."),
            ("inputs", "For each input an opaque text that changes with it."),
            ("observedGeneration", "The generation of the spec that this is about."),
            ("rejected", "The version that was last refused or taken back."),
            ("target", "The version that is on its way to consumers."),
            ("version", "The last good version, which the output holds."),
        ],
    },
    Words {
        name: "TargetVersion",
        about: "ConfigTemplateTargetVersion is a version that is on its way to consumers.",
        fields: &[
            ("began", "Since when."),
            ("previous", "The last good version, to which consumers return."),
            ("validated", "Whether the validate command has accepted it."),
            ("version", "The version."),
        ],
    },
    Words {
        name: "RejectedVersion",
        about: "ConfigTemplateRejectedVersion is a version that was refused or taken back.",
        fields: &[
            ("message", "Why, in words."),
            ("reason", "Why, in one word."),
            ("time", "When."),
            ("version", "The version."),
        ],
    },
    Words {
        name: "ConsumerCounts",
        about: "ConfigTemplateConsumerCounts counts consumers.",
        fields: &[
            ("healthy", "How many are ready."),
            ("total", "How many there are."),
            ("updated", "How many have the wanted version and were notified of it."),
        ],
    },
    Words {
        name: "HistoryEntry",
        about: "ConfigTemplateHistoryEntry is a version and what became of it.",
        fields: &[
            ("changed", "What changed: template, or names of inputs."),
            ("manager", "The field manager that wrote the change, where known."),
            ("message", "More about the result."),
            ("result", "Progressing, Succeeded, Superseded, Invalid or RolledBack."),
            ("time", "When it was rendered."),
            ("version", "The version: a digest of the content."),
        ],
    },
];

/// The definition with this number.
struct Definition<const N: usize>;

impl<const N: usize> JsonSchema for Definition<N> {
    fn schema_name() -> Cow<'static, str> {
        format!("dev.mainstay.v1.ConfigTemplate{}", DEFINITIONS[N].name).into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let Words { about, fields, .. } = &DEFINITIONS[N];
        let properties: Map<String, Value> =
            fields.iter().map(|(name, words)| ((*name).to_owned(), json!({ "description": words }))).collect();
        json_schema!({ "description": about, "type": "object", "properties": properties })
    }
}

/// Adds all definitions to the document.
macro_rules! define {
    ($generator:ident, $($number:literal)*) => {
        $($generator.subschema_for::<Definition<$number>>();)*
    };
}

impl JsonSchema for ConfigTemplate {
    fn schema_name() -> Cow<'static, str> {
        "dev.mainstay.v1.ConfigTemplate".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        define!(generator, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19);
        let _ = generator.subschema_for::<ObjectMeta>();
        json_schema!({
            "description": "ConfigTemplate renders configuration from objects of the cluster into a ConfigMap or Secret, and \
                            brings each new version to its consumers in waves.",
            "type": "object",
            "properties": {
                "apiVersion": {"description": "The version of this representation of an object."},
                "kind": {"description": "What the object is."},
                "metadata": {"description": "Standard object's metadata."},
                "spec": {"description": "The template, what it reads, where its result goes, and how that reaches pods."},
                "status": {"description": "What became of it."},
            },
        })
    }
}
