//! What `kubectl explain` shows of a ConfigTemplate. The facts are those of the schema table.

use crate::{
    config_template::ConfigTemplateSpec,
    own_object::{DefinitionDoc, OwnKind},
};

impl OwnKind for ConfigTemplateSpec {
    type Scope = k8s_openapi::NamespaceResourceScope;
    const KIND: &'static str = "ConfigTemplate";
    const LIST_KIND: &'static str = "ConfigTemplateList";
    const PLURAL: &'static str = "configtemplates";
    const ABOUT: &'static str = "ConfigTemplate renders configuration from objects of the cluster into a ConfigMap or Secret, and \
                                 brings each new version to its consumers in waves.";
    const SPEC_ABOUT: &'static str = "The template, what it reads, where its result goes, and how that reaches pods.";
    const STATUS_ABOUT: &'static str = "What became of it.";
    const DEFINITIONS: &'static [DefinitionDoc] = &[
        DefinitionDoc {
            name: "ConfigTemplateSpec",
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
                (
                    "quietSeconds",
                    "How long inputs have to be unchanged before the template is rendered. Defaults to 1.",
                ),
                ("rollout", "In which order and how fast a new version reaches consumers, and when it is taken back."),
                ("template", "The template, in the language of Jinja2. What it names has to exist."),
                (
                    "validate",
                    "A command in a container of a consumer that judges a new version before anybody reads it.",
                ),
            ],
        },
        DefinitionDoc {
            name: "ConfigTemplateInput",
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
        DefinitionDoc {
            name: "ConfigTemplateServiceInput",
            about: "ConfigTemplateServiceInput is one Service by name, or all that a selector matches, as a list.",
            fields: &[
                ("name", "The name of the Service."),
                ("namespace", "Its namespace; that of the template if left out. With a selector, * are all of them."),
                ("selector", "Selects Services by their labels."),
            ],
        },
        DefinitionDoc {
            name: "ConfigTemplateObjectInput",
            about: "ConfigTemplateObjectInput names a ConfigMap or Secret.",
            fields: &[("name", "The name of the object, in the template's namespace.")],
        },
        DefinitionDoc {
            name: "ConfigTemplateNodesInput",
            about: "ConfigTemplateNodesInput selects nodes.",
            fields: &[("selector", "Selects nodes by their labels; all of them if left out.")],
        },
        DefinitionDoc {
            name: "ConfigTemplateOutput",
            about: "ConfigTemplateOutput says where the result is written. Exactly one of configMap and secret is set.",
            fields: &[("configMap", "A key of a ConfigMap."), ("secret", "A key of a Secret.")],
        },
        DefinitionDoc {
            name: "ConfigTemplateOutputKey",
            about: "ConfigTemplateOutputKey is a key of an object in the template's namespace.",
            fields: &[
                ("key", "The key whose value is the result."),
                ("name", "The name of the object, which is made if it does not exist."),
            ],
        },
        DefinitionDoc {
            name: "ConfigTemplateConsumer",
            about: "ConfigTemplateConsumer are pods that read the output, or machines that have it as a file. Exactly one of machines, selector and workload is set.",
            fields: &[
                ("machines", "Machines that have the output as a file."),
                ("onChange", "What is done in a pod when it has a new version; nothing if left out."),
                ("selector", "Selects pods of the template's namespace by their labels."),
                ("workload", "The workload that the pods belong to."),
            ],
        },
        DefinitionDoc {
            name: "ConfigTemplateMachineConsumer",
            about: "ConfigTemplateMachineConsumer are machines, and the file that they have the output in. Their own configuration files say which directories may be written and what is done on a change.",
            fields: &[
                ("group", "A group of the machine, by name or number; root's if left out."),
                ("mode", "The permissions of the file, in octal. Defaults to 0600."),
                ("owner", "An account of the machine, by name or number; root if left out."),
                ("path", "The path of the file. Its directory has to exist on the machine."),
                ("selector", "Selects machines by the labels of their Nodes; all of them if left out."),
            ],
        },
        DefinitionDoc {
            name: "ConfigTemplateWorkloadReference",
            about: "ConfigTemplateWorkloadReference names a workload of the template's namespace.",
            fields: &[
                ("kind", "DaemonSet, Deployment, ReplicaSet or StatefulSet."),
                ("name", "The name of the workload."),
            ],
        },
        DefinitionDoc {
            name: "ConfigTemplateOnChange",
            about: "ConfigTemplateOnChange is what is done in a pod when it has a new version. At most one of its fields is set.",
            fields: &[
                ("exec", "Run a command in a container."),
                ("http", "Send a request to the pod."),
                ("restart", "Evict the pod, as disruption budgets allow."),
                ("signal", "Send a signal to the first process of a container."),
            ],
        },
        DefinitionDoc {
            name: "ConfigTemplateSignalAction",
            about: "ConfigTemplateSignalAction sends a signal, by the program kill of the container.",
            fields: &[
                ("container", "The container; the pod's first if left out."),
                ("signal", "The signal: SIGHUP, for example."),
            ],
        },
        DefinitionDoc {
            name: "ConfigTemplateExecAction",
            about: "ConfigTemplateExecAction runs a command, which has to end with 0.",
            fields: &[
                ("command", "The command and its arguments; no shell is used."),
                ("container", "The container; the pod's first if left out."),
                ("timeoutSeconds", "How long it may take. Defaults to 10."),
            ],
        },
        DefinitionDoc {
            name: "ConfigTemplateHTTPAction",
            about: "ConfigTemplateHTTPAction sends a request, which has to be answered with a code between 200 and 299.",
            fields: &[
                ("method", "GET, POST or PUT. Defaults to POST."),
                ("path", "The path. Defaults to /."),
                ("port", "The port of the pod."),
                ("timeoutSeconds", "How long it may take. Defaults to 10."),
            ],
        },
        DefinitionDoc {
            name: "ConfigTemplateValidate",
            about: "ConfigTemplateValidate is a command that reads a new version from its standard input and ends with 0 if it is good.",
            fields: &[
                ("command", "The command and its arguments; no shell is used."),
                ("container", "The container; the pod's first if left out."),
                ("timeoutSeconds", "How long it may take. Defaults to 10."),
            ],
        },
        DefinitionDoc {
            name: "ConfigTemplateRollout",
            about: "ConfigTemplateRollout says in which order and how fast a new version reaches consumers.",
            fields: &[
                ("maxFailed", "How many consumers may fail before the version is taken back. Defaults to 0."),
                ("maxUnavailable", "How many consumers may be on their way or unhealthy at a time. Defaults to 25%."),
                (
                    "progressDeadlineSeconds",
                    "After so long without progress the version is taken back. Defaults to 600.",
                ),
                ("soakSeconds", "How long the consumers of a wave have to be healthy before the next one begins."),
                (
                    "waves",
                    "Shares of all consumers, each including those before: [1, \"50%\", \"100%\"]. One wave if left out.",
                ),
            ],
        },
        DefinitionDoc {
            name: "ConfigTemplateStatus",
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
        DefinitionDoc {
            name: "ConfigTemplateTargetVersion",
            about: "ConfigTemplateTargetVersion is a version that is on its way to consumers.",
            fields: &[
                ("began", "Since when."),
                ("previous", "The last good version, to which consumers return."),
                ("validated", "Whether the validate command has accepted it."),
                ("version", "The version."),
            ],
        },
        DefinitionDoc {
            name: "ConfigTemplateRejectedVersion",
            about: "ConfigTemplateRejectedVersion is a version that was refused or taken back.",
            fields: &[
                ("message", "Why, in words."),
                ("reason", "Why, in one word."),
                ("time", "When."),
                ("version", "The version."),
            ],
        },
        DefinitionDoc {
            name: "ConfigTemplateConsumerCounts",
            about: "ConfigTemplateConsumerCounts counts consumers.",
            fields: &[
                ("healthy", "How many are ready."),
                ("total", "How many there are."),
                ("updated", "How many have the wanted version and were notified of it."),
            ],
        },
        DefinitionDoc {
            name: "ConfigTemplateHistoryEntry",
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
}
