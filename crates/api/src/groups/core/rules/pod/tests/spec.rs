//! Validation errors of invalid specs.

use super::*;

const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start \
     and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
     '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";

#[test]
fn containers_are_named_once_and_have_an_image() {
    refused(pod(json!({"containers": []})), &["spec.containers: Required value"]);
    refused(
        pod(json!({"containers": [{}]})),
        &["spec.containers[0].name: Required value", "spec.containers[0].image: Required value"],
    );
    refused(
        pod(json!({
            "containers": [{"name": "a", "image": "i"}, {"name": "a", "image": "i"}],
            "initContainers": [{"name": "a", "image": "i"}],
        })),
        &[r#"spec.containers[1].name: Duplicate value: "a""#, r#"spec.initContainers[0].name: Duplicate value: "a""#],
    );
    refused(
        pod(json!({"containers": [{"name": "A", "image": " i"}]})),
        &[
            &format!(r#"spec.containers[0].name: Invalid value: "A": {LABEL}"#),
            r#"spec.containers[0].image: Invalid value: " i": must not have leading or trailing whitespace"#,
        ],
    );
    refused(
        container_with(
            json!({"imagePullPolicy": "Sometimes", "terminationMessagePolicy": "Shout", "restartPolicy": "Often"}),
        ),
        &[
            r#"spec.containers[0].terminationMessagePolicy: Unsupported value: "Shout": supported values: "File", "FallbackToLogsOnError""#,
            r#"spec.containers[0].imagePullPolicy: Unsupported value: "Sometimes": supported values: "Always", "IfNotPresent", "Never""#,
            r#"spec.containers[0].restartPolicy: Unsupported value: "Often": supported values: "Always", "Never", "OnFailure""#,
        ],
    );
    refused(
        pod_with(json!({"initContainers": [
            {"name": "a", "image": "i", "livenessProbe": {"tcpSocket": {"port": 1}}, "restartPolicy": "Often"},
        ]})),
        &[
            r#"spec.initContainers[0].restartPolicy: Unsupported value: "Often": supported values: "Always", "Never", "OnFailure""#,
            "spec.initContainers[0].livenessProbe: Forbidden: may not be set for init containers without restartPolicy=Always",
        ],
    );
    refused(
        pod_with(json!({"ephemeralContainers": [
            {"name": "c", "image": "i", "ports": [{"containerPort": 1}], "targetContainerName": "x"},
        ]})),
        &[
            r#"spec.ephemeralContainers[0].name: Duplicate value: "c""#,
            r#"spec.ephemeralContainers[0].targetContainerName: Not found: "x""#,
            "spec.ephemeralContainers[0].ports: Forbidden: cannot be set for an Ephemeral Container",
            "spec.ephemeralContainers: Forbidden: cannot be set on create",
        ],
    );
}

#[test]
fn ports_are_in_range_and_taken_once() {
    refused(
        container_with(json!({"ports": [
            {"containerPort": 0},
            {"containerPort": 70000, "hostPort": -1, "protocol": "tcp"},
            {"containerPort": 1, "name": "a"},
            {"containerPort": 2, "name": "a"},
            {"containerPort": 3, "name": "way-too-long-port-name"},
        ]})),
        &[
            "spec.containers[0].ports[0].containerPort: Required value",
            "spec.containers[0].ports[1].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
            "spec.containers[0].ports[1].hostPort: Invalid value: -1: must be between 1 and 65535, inclusive",
            r#"spec.containers[0].ports[1].protocol: Unsupported value: "tcp": supported values: "SCTP", "TCP", "UDP""#,
            r#"spec.containers[0].ports[3].name: Duplicate value: "a""#,
            r#"spec.containers[0].ports[4].name: Invalid value: "way-too-long-port-name": must be no more than 15 bytes"#,
        ],
    );
    refused(
        pod(json!({"containers": [
            {"name": "a", "image": "i", "ports": [{"containerPort": 80, "hostPort": 8080}]},
            {"name": "b", "image": "i", "ports": [{"containerPort": 81, "hostPort": 8080}]},
        ]})),
        &[r#"spec.containers[1].ports[0].hostPort: Duplicate value: "TCP//8080""#],
    );
    refused(
        with(
            &container_with(json!({"ports": [{"containerPort": 80, "hostPort": 81}]})),
            json!({"spec": {"hostNetwork": true}}),
        ),
        &[
            "spec.containers[0].ports[0].hostPort: Invalid value: 81: must match `containerPort` when `hostNetwork` is true",
        ],
    );
}

#[test]
fn variables_have_a_name_and_one_source() {
    refused(
        container_with(json!({"env": [
            {"name": "A=B"},
            {"name": ""},
            {"name": "C", "valueFrom": {}},
            {"name": "D", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "E", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels"}}},
            {"name": "F", "valueFrom": {"fieldRef": {"fieldPath": "spec.color"}}},
            {"name": "G", "valueFrom": {"secretKeyRef": {"name": "s", "key": ""}, "configMapKeyRef": {"name": "s", "key": "k"}}},
            {"name": "H", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "2"}}},
            {"name": "I", "valueFrom": {"resourceFieldRef": {"resource": "limits.love"}}},
        ], "envFrom": [{}]})),
        &[
            r#"spec.containers[0].env[0].name: Invalid value: "A=B": a valid environment variable name must consist only of printable ASCII characters other than '='"#,
            "spec.containers[0].env[1].name: Required value",
            r#"spec.containers[0].env[2].valueFrom: Invalid value: "": must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"#,
            r#"spec.containers[0].env[3].valueFrom: Invalid value: "": may not be specified when `value` is not empty"#,
            r#"spec.containers[0].env[4].valueFrom.fieldRef.fieldPath: Unsupported value: "metadata.labels": supported values: "metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName", "status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs""#,
            r#"spec.containers[0].env[5].valueFrom.fieldRef.fieldPath: Invalid value: "spec.color": error converting fieldPath: field label not supported: spec.color"#,
            "spec.containers[0].env[6].valueFrom.secretKeyRef.key: Required value",
            r#"spec.containers[0].env[6].valueFrom: Invalid value: "": may not have more than one field specified at a time"#,
            r#"spec.containers[0].env[7].valueFrom.resourceFieldRef.divisor: Invalid value: "limits.cpu": only divisor's values 1m and 1 are supported with the cpu resource"#,
            r#"spec.containers[0].env[8].valueFrom.resourceFieldRef.resource: Unsupported value: "limits.love": supported values: "limits.cpu", "limits.ephemeral-storage", "limits.memory", "requests.cpu", "requests.ephemeral-storage", "requests.memory""#,
            r#"spec.containers[0].envFrom: Invalid value: "": must specify one of: `configMapRef` or `secretRef`"#,
        ],
    );
}

#[test]
fn mounts_name_a_volume_and_a_place_of_their_own() {
    refused(
        with(
            &container_with(json!({
                "volumeMounts": [
                    {"name": "a", "mountPath": "/a"},
                    {"name": "a", "mountPath": "/a", "subPath": "/x"},
                    {"name": "b", "mountPath": ""},
                    {"name": "a", "mountPath": "/c", "mountPropagation": "Bidirectional"},
                    {"name": "a", "mountPath": "/d", "recursiveReadOnly": "Enabled"},
                ],
                "volumeDevices": [{"name": "a", "devicePath": "/a"}],
            })),
            json!({"spec": {"volumes": [{"name": "a"}]}}),
        ),
        &[
            r#"spec.containers[0].volumeMounts[0].name: Invalid value: "a": must not already exist in volumeDevices"#,
            r#"spec.containers[0].volumeMounts[0].mountPath: Invalid value: "/a": must not already exist as a path in volumeDevices"#,
            r#"spec.containers[0].volumeMounts[1].mountPath: Invalid value: "/a": must be unique"#,
            r#"spec.containers[0].volumeMounts[1].name: Invalid value: "a": must not already exist in volumeDevices"#,
            r#"spec.containers[0].volumeMounts[1].mountPath: Invalid value: "/a": must not already exist as a path in volumeDevices"#,
            r#"spec.containers[0].volumeMounts.subPath: Invalid value: "/x": must be a relative path"#,
            r#"spec.containers[0].volumeMounts[2].name: Not found: "b""#,
            "spec.containers[0].volumeMounts[2].mountPath: Required value",
            r#"spec.containers[0].volumeMounts[3].name: Invalid value: "a": must not already exist in volumeDevices"#,
            "spec.containers[0].volumeMounts.mountPropagation: Forbidden: Bidirectional mount propagation is available only to privileged containers",
            r#"spec.containers[0].volumeMounts[4].name: Invalid value: "a": must not already exist in volumeDevices"#,
            "spec.containers[0].volumeMounts.recursiveReadOnly: Forbidden: may only be specified when readOnly is true",
            r#"spec.containers[0].volumeDevices[0].name: Invalid value: "a": can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode"#,
            r#"spec.containers[0].volumeDevices[0].devicePath: Invalid value: "/a": must not already exist as a path in volumeMounts"#,
            r#"spec.containers[0].volumeDevices[0].name: Invalid value: "a": must not already exist in volumeMounts"#,
        ],
    );
}

#[test]
fn volumes_have_one_sound_source() {
    refused(
        pod_with(json!({"volumes": [
            {"name": "a", "emptyDir": {}, "hostPath": {"path": "/"}},
            {"name": "a", "secret": {}},
            {"name": "b", "configMap": {"name": "", "defaultMode": 512, "items": [{"key": "k", "path": "../x"}]}},
            {"name": "c", "hostPath": {"path": "/a/../b", "type": "Door"}},
            {"name": "d", "persistentVolumeClaim": {"claimName": ""}},
            {"name": "e", "nfs": {"server": "s", "path": "rel"}},
            {"name": "f", "projected": {"sources": [
                {"serviceAccountToken": {"path": "t", "expirationSeconds": 10}},
                {"secret": {"name": "s", "items": [{"key": "k", "path": "p"}]}, "configMap": {"name": "m", "items": [{"key": "k", "path": "p"}]}},
            ]}},
            {"name": "g", "downwardAPI": {"items": [{"path": "x"}]}},
            {"name": "h", "ephemeral": {}},
            {"name": "", "emptyDir": {"sizeLimit": "-1"}},
        ]})),
        &[
            "spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type",
            "spec.volumes[1].secret.secretName: Required value",
            "spec.volumes[2].configMap.name: Required value",
            "spec.volumes[2].configMap.defaultMode: Invalid value: 512: must be a number between 0 and 0777 (octal), both inclusive",
            r#"spec.volumes[2].configMap.items[0].path: Invalid value: "../x": must not contain '..'"#,
            r#"spec.volumes[3].hostPath.path: Invalid value: "/a/../b": must not contain '..'"#,
            r#"spec.volumes[3].hostPath.type: Unsupported value: "Door": supported values: "", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket""#,
            "spec.volumes[4].persistentVolumeClaim.claimName: Required value",
            r#"spec.volumes[5].nfs.path: Invalid value: "rel": must be an absolute path"#,
            "spec.volumes[6].projected.sources[0].serviceAccountToken.expirationSeconds: Invalid value: 10: may not specify a duration less than 10 minutes",
            r#"spec.volumes[6].projected: Invalid value: "m": conflicting duplicate paths"#,
            "spec.volumes[6].projected.sources[1]: Forbidden: may not specify more than 1 volume type per source",
            "spec.volumes[7].downwardAPI: Required value: one of fieldRef and resourceFieldRef is required",
            "spec.volumes[8].ephemeral.volumeClaimTemplate: Required value",
            "spec.volumes[9].emptyDir.sizeLimit: Forbidden: SizeLimit field must be a valid resource quantity",
            "spec.volumes[9].name: Required value",
        ],
    );
    refused(
        pod_with(json!({"volumes": [{"name": "a"}, {"name": "a"}]})),
        &[r#"spec.volumes[1].name: Duplicate value: "a""#],
    );
    refused(
        pod_with(json!({"volumes": [
            {"name": "a", "ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": 1}}}}}},
            {"name": "b", "persistentVolumeClaim": {"claimName": "p-a"}},
        ]})),
        &[
            r#"spec.volumes[1].persistentVolumeClaim.claimName: Invalid value: "p-a": must not reference a PVC that gets created for an ephemeral volume"#,
        ],
    );
}

#[test]
fn probes_and_hooks_have_one_handler() {
    refused(
        container_with(json!({
            "livenessProbe": {"exec": {}, "tcpSocket": {"port": 1}, "successThreshold": 2},
            "readinessProbe": {"httpGet": {"port": 0, "scheme": "FTP", "httpHeaders": [{"name": "a b", "value": ""}]}, "terminationGracePeriodSeconds": 1},
            "startupProbe": {"periodSeconds": -1, "terminationGracePeriodSeconds": 0},
            "lifecycle": {"preStop": {"sleep": {"seconds": 60}}, "postStart": {}},
        })),
        &[
            "spec.containers[0].lifecycle.postStart: Required value: must specify a handler type",
            "spec.containers[0].lifecycle.preStop.sleep: Invalid value: 60: must be non-negative and less than terminationGracePeriodSeconds (30)",
            "spec.containers[0].livenessProbe.exec.command: Required value",
            "spec.containers[0].livenessProbe.tcpSocket: Forbidden: may not specify more than 1 handler type",
            "spec.containers[0].livenessProbe.successThreshold: Invalid value: 2: must be 1",
            "spec.containers[0].readinessProbe.httpGet.port: Invalid value: 0: must be between 1 and 65535, inclusive",
            r#"spec.containers[0].readinessProbe.httpGet.scheme: Unsupported value: "FTP": supported values: "HTTP", "HTTPS""#,
            r#"spec.containers[0].readinessProbe.httpGet.httpHeaders: Invalid value: "a b": a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for validation is '[-A-Za-z0-9]+')"#,
            "spec.containers[0].readinessProbe.terminationGracePeriodSeconds: Invalid value: 1: must not be set for readinessProbes",
            "spec.containers[0].startupProbe: Required value: must specify a handler type",
            "spec.containers[0].startupProbe.periodSeconds: Invalid value: -1: must be greater than or equal to 0",
            "spec.containers[0].startupProbe.terminationGracePeriodSeconds: Invalid value: 0: must be greater than 0",
        ],
    );
}

#[test]
fn security_contexts_do_not_contradict_themselves() {
    refused(
        pod_with(json!({
            "hostPID": true,
            "shareProcessNamespace": true,
            "hostNetwork": true,
            "securityContext": {
                "runAsUser": -1,
                "fsGroupChangePolicy": "Now",
                "seccompProfile": {"type": "Localhost"},
                "appArmorProfile": {"type": "Mine"},
                "sysctls": [{"name": "net.x", "value": ""}, {"name": "Kernel", "value": ""}],
            },
            "containers": [{"name": "c", "image": "i:1", "securityContext": {
                "privileged": true, "allowPrivilegeEscalation": false, "procMount": "Unmasked",
            }}],
        })),
        &[
            r#"spec.containers[0].securityContext.procMount: Invalid value: "Unmasked": `hostUsers` must be false to use `Unmasked`"#,
            r#"spec.containers[0].securityContext: Invalid value: {"allowPrivilegeEscalation":false,"privileged":true,"procMount":"Unmasked"}: cannot set `allowPrivilegeEscalation` to false and `privileged` to true"#,
            "spec.securityContext.runAsUser: Invalid value: -1: must be between 0 and 4294967295, inclusive",
            "spec.securityContext.shareProcessNamespace: Invalid value: true: ShareProcessNamespace and HostPID cannot both be enabled",
            r#"spec.securityContext.sysctls[0].name: Invalid value: "net.x": may not be specified when 'hostNetwork' is true"#,
            r#"spec.securityContext.sysctls[1].name: Invalid value: "Kernel": must have at most 253 characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$"#,
            r#"spec.securityContext.fsGroupChangePolicy: Unsupported value: "Now": supported values: "Always", "OnRootMismatch""#,
            "spec.securityContext.seccompProfile.localhostProfile: Required value: must be set when seccomp type is Localhost",
            r#"spec.securityContext.appArmorProfile.type: Unsupported value: "Mine": supported values: "Localhost", "RuntimeDefault", "Unconfined""#,
        ],
    );
}

#[test]
fn pods_stay_within_their_operating_system() {
    refused(
        pod_with(json!({"os": {"name": "plan9"}})),
        &[r#"spec.os: Unsupported value: "plan9": supported values: "linux", "windows""#],
    );
    refused(
        pod_with(json!({"os": {"name": "windows"}, "hostPID": true, "securityContext": {"runAsUser": 1}})),
        &[
            "spec.hostPID: Forbidden: cannot be set for a windows pod",
            "spec.securityContext.runAsUser: Forbidden: cannot be set for a windows pod",
        ],
    );
    refused(
        pod_with(json!({"securityContext": {"windowsOptions": {"hostProcess": true}}})),
        &[
            "spec.hostNetwork: Invalid value: false: hostNetwork must be true if pod contains any hostProcess containers",
        ],
    );
}

#[test]
fn wishes_about_nodes_are_well_formed() {
    refused(
        pod_with(json!({
            "tolerations": [
                {"key": "a", "operator": "Exists", "value": "v"},
                {"operator": "Equal"},
                {"key": "a", "tolerationSeconds": 1},
                {"key": "a", "operator": "Like", "effect": "Never"},
            ],
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []},
                    "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 0, "preference": {"matchExpressions": [{"key": "a", "operator": "In"}]}}],
                },
                "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone", "matchLabelKeys": ["a"]}]},
            },
            "topologySpreadConstraints": [
                {"maxSkew": 0, "topologyKey": "", "whenUnsatisfiable": "Cry", "minDomains": 1},
                {"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule"},
                {"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule"},
            ],
            "schedulingGates": [{"name": "a"}, {"name": "a"}],
            "nodeName": "n",
        })),
        &[
            "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms: Required value: must have at least one node selector term",
            "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight: Invalid value: 0: must be in the range 1-100",
            "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference.matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'",
            "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].matchLabelKeys: Forbidden: must not be specified when labelSelector is not set",
            r#"spec.schedulingGates[1]: Duplicate value: "a""#,
            "spec.topologySpreadConstraints[0].maxSkew: Invalid value: 0: must be greater than zero",
            "spec.topologySpreadConstraints[0].topologyKey: Required value: can not be empty",
            r#"spec.topologySpreadConstraints[0].whenUnsatisfiable: Unsupported value: "Cry": supported values: "DoNotSchedule", "ScheduleAnyway""#,
            "spec.topologySpreadConstraints[0].minDomains: Invalid value: 1: can only use minDomains if whenUnsatisfiable=DoNotSchedule, not Cry",
            r#"spec.topologySpreadConstraints[1].{topologyKey, whenUnsatisfiable}: Duplicate value: "{z, DoNotSchedule}""#,
            r#"spec.tolerations[0].operator: Invalid value: "v": value must be empty when `operator` is 'Exists'"#,
            r#"spec.tolerations[1].operator: Invalid value: "Equal": operator must be Exists when `key` is empty, which means "match all values and all keys""#,
            r#"spec.tolerations[2].effect: Invalid value: "": effect must be 'NoExecute' when `tolerationSeconds` is set"#,
            r#"spec.tolerations[3].operator: Unsupported value: "Like": supported values: "Equal", "Exists""#,
            r#"spec.tolerations[3].effect: Unsupported value: "Never": supported values: "NoSchedule", "PreferNoSchedule", "NoExecute""#,
            "spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared",
        ],
    );
}

#[test]
fn enums_numbers_and_names_are_checked() {
    refused(
        pod_with(json!({
            "restartPolicy": "Maybe",
            "dnsPolicy": "Guess",
            "activeDeadlineSeconds": 0,
            "hostname": "a.b",
            "preemptionPolicy": "Always",
            "overhead": {"cpu": "-1"},
            "hostUsers": false,
            "hostIPC": true,
            "hostAliases": [{"ip": "x"}],
            "resourceClaims": [{"name": "a"}],
        })),
        &[
            r#"spec.resourceClaims[0]: Invalid value: {"name":"a"}: must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"#,
            r#"spec.restartPolicy: Unsupported value: "Maybe": supported values: "Always", "OnFailure", "Never""#,
            r#"spec.dnsPolicy: Unsupported value: "Guess": supported values: "ClusterFirstWithHostNet", "ClusterFirst", "Default", "None""#,
            "spec.HostIPC: Forbidden: when `pod.Spec.HostUsers` is false",
            r#"spec.hostname: Invalid value: "a.b": must not contain dots"#,
            "spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive",
            r#"spec.hostAliases[0].ip: Invalid value: "x": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"#,
            r#"spec.preemptionPolicy: Unsupported value: "Always": supported values: "PreemptLowerPriority", "Never""#,
            r#"spec.overhead.limits[cpu]: Invalid value: "-1": must be greater than or equal to 0"#,
        ],
    );
    refused(
        pod_with(json!({"dnsPolicy": "None"})),
        &["spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None"],
    );
    refused(
        pod_with(json!({
            "containers": [{"name": "c", "image": "i:1", "resources": {"limits": {"cpu": "2"}}}],
            "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}},
        })),
        &[
            r#"spec.resources.requests[cpu]: Invalid value: "1": must be greater than or equal to aggregate container requests of 2"#,
            r#"spec.resources.containers[0][cpu].limits: Invalid value: "2": must be less than or equal to pod limits of 1"#,
        ],
    );
    refused(
        with(
            &pod_with(json!({})),
            json!({"metadata": {"annotations": {
                "controller.kubernetes.io/pod-deletion-cost": "+1",
                "container.apparmor.security.beta.kubernetes.io/x": "mine",
            }}}),
        ),
        &[
            r#"metadata.annotations[controller.kubernetes.io/pod-deletion-cost]: Invalid value: "+1": must be a 32bit integer"#,
            r#"metadata.annotations[container.apparmor.security.beta.kubernetes.io/x]: Invalid value: "x": container not found"#,
            r#"metadata.annotations[container.apparmor.security.beta.kubernetes.io/x]: Invalid value: "mine": invalid AppArmor profile name: "mine""#,
        ],
    );
}
