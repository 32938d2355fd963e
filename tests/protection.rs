//! Pods get the protection they ask for, or fail and say why.

use crate::harness::{Kubectl, Version, eventually};

const PHASE: &str = "{.status.phase}";

fn pod(name: &str, spec: &str, container: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 0
  {spec}
  containers:
  - name: c
    image: host
    command: [sh, -c, 'echo ready; sleep 100000']
    {container}
"
    )
}

fn runs(k: &Kubectl, name: &str) {
    eventually(&format!("{name} runs"), || {
        let phase = k.value(&format!("pod {name}"), PHASE);
        assert_ne!(phase, "Failed", "{}", k.ok(&format!("get pod {name} -o yaml")));
        (phase == "Running").then_some(())
    });
}

fn inside(k: &Kubectl, name: &str, script: &str) -> String {
    k.ok(&format!("exec {name} -- sh -c '{script}'"))
}

#[test]
fn a_pod_that_asks_for_what_the_machine_lacks_fails_with_the_reason() {
    let k = Kubectl::with_pods(Version::V1_32);
    let localhost = "appArmorProfile: {type: Localhost, localhostProfile: no-such-profile}";
    let annotated = pod("annotated", "", "").replace(
        "{name: annotated}",
        "{name: annotated, annotations: {container.apparmor.security.beta.kubernetes.io/c: localhost/no-such-profile}}",
    );
    k.create(&pod("of-pod", &format!("securityContext: {{{localhost}}}"), ""));
    k.create(&pod("of-container", "", &format!("securityContext: {{{localhost}}}")));
    k.create(&annotated);
    k.create(&pod("sysctl", "securityContext: {sysctls: [{name: kernel.msgmax, value: '65536'}]}", ""));
    k.create(&pod("windows", "os: {name: windows}", ""));
    let not_enabled = "Cannot enforce AppArmor: AppArmor is not enabled on the host";
    let not_loaded = "Cannot enforce AppArmor: profile \"no-such-profile\" is not loaded";
    let has_apparmor =
        std::fs::read_to_string("/sys/module/apparmor/parameters/enabled").is_ok_and(|text| text.starts_with('Y'));
    let apparmor = if has_apparmor { not_loaded } else { not_enabled };
    for (name, reason, message) in [
        ("of-pod", "AppArmor", apparmor),
        ("of-container", "AppArmor", apparmor),
        ("annotated", "AppArmor", apparmor),
        ("sysctl", "SysctlForbidden", "forbidden sysctl: \"kernel.msgmax\" not allowlisted"),
        ("windows", "PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS"),
    ] {
        eventually(&format!("{name} fails"), || {
            let phase = k.value(&format!("pod {name}"), PHASE);
            assert_ne!(phase, "Running", "{name}");
            (phase == "Failed").then_some(())
        });
        assert_eq!(k.value(&format!("pod {name}"), "{.status.reason}"), reason);
        assert_eq!(k.value(&format!("pod {name}"), "{.status.message}"), format!("Pod was rejected: {message}"));
        let shown = k.ok(&format!("get pod {name} --no-headers"));
        assert_eq!(shown.split_whitespace().nth(2), Some(reason), "{shown}");
        let events = k.value(
            &format!("events --field-selector involvedObject.name={name},reason={reason}"),
            "{.items[*].message}",
        );
        assert_eq!(events, message, "said once");
    }
    k.create(&pod("unconfined", "securityContext: {appArmorProfile: {type: Unconfined}}", ""));
    runs(&k, "unconfined");
}

#[test]
fn an_unknown_runtime_class_is_named_and_nothing_runs() {
    let k = Kubectl::with_pods(Version::V1_32);
    for (name, handler) in [("sandboxed", "nowhere"), ("own", "mainstay")] {
        let class = "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: NAME}\nhandler: HANDLER\n";
        k.create(&class.replace("NAME", name).replace("HANDLER", handler));
    }
    k.create(&pod("sandboxed", "runtimeClassName: sandboxed", ""));
    k.create(&pod("own", "runtimeClassName: own", ""));
    eventually("the handler is missed", || {
        let events = k.ok("get events --field-selector involvedObject.name=sandboxed,reason=FailedCreatePodSandBox");
        events.contains("Failed to create pod sandbox: no runtime for \"nowhere\" is configured").then_some(())
    });
    assert_eq!(k.value("pod sandboxed", PHASE), "Pending");
    runs(&k, "own");
}

#[test]
fn a_container_sees_no_cgroup_but_its_own_and_changes_none() {
    let k = Kubectl::with_pods(Version::V1_32);
    k.create(&pod("limited", "", "resources: {limits: {memory: 64Mi}}"));
    runs(&k, "limited");
    let output = inside(
        &k,
        "limited",
        "cd /sys/fs/cgroup
        for file in memory/memory.limit_in_bytes memory.max; do test -e $file && cat $file && echo -1 > $file && echo WROTE; done
        for dir in $(find . -type d); do mkdir $dir/evil && echo MADE $dir; done
        for dir in $(find . -type d); do mount -o remount,rw /sys/fs/cgroup/$dir && echo MOUNTED $dir; done
        ls; echo end",
    );
    assert!(output.starts_with("67108864\n") && output.trim_end().ends_with("end"), "{output}");
    for wrong in ["WROTE", "MADE", "MOUNTED", "systemd", "unified"] {
        assert!(!output.contains(wrong), "{wrong}: {output}");
    }
}

#[test]
fn pods_have_users_of_their_own() {
    let k = Kubectl::with_pods(Version::V1_32);
    k.ok("create configmap settings --from-literal=key=value");
    k.ok("create secret generic hidden --from-literal=key=secret");
    let volumes = "hostUsers: false
  securityContext: {fsGroup: 2000}
  volumes:
  - {name: settings, configMap: {name: settings}}
  - {name: hidden, secret: {secretName: hidden, defaultMode: 0400}}
  - {name: work, emptyDir: {}}
  - {name: memory, emptyDir: {medium: Memory}}";
    let mounts = "volumeMounts:
    - {name: settings, mountPath: /settings}
    - {name: hidden, mountPath: /hidden}
    - {name: work, mountPath: /work}
    - {name: memory, mountPath: /memory}
    securityContext: {capabilities: {add: [SYS_ADMIN, NET_ADMIN]}}";
    k.create(&pod("one", volumes, mounts));
    k.create(&pod("two", volumes, mounts));
    let map = |name: &str| {
        runs(&k, name);
        let text = inside(&k, name, "cat /proc/self/uid_map /proc/self/gid_map");
        let fields: Vec<u64> = text.split_whitespace().map(|field| field.parse().expect("a number")).collect();
        assert_eq!((fields[0], fields[2], &fields[..3]), (0, 65_536, &fields[3..]), "{text}");
        assert!(fields[1] >= 65_536 && fields[1].is_multiple_of(65_536), "{text}");
        fields[1]
    };
    assert_ne!(map("one"), map("two"));
    let output = inside(
        &k,
        "one",
        "cat /settings/key /hidden/key /etc/hostname /var/run/secrets/kubernetes.io/serviceaccount/namespace
        echo; stat -c %u:%g /work /memory; touch /work/a /memory/a && stat -c %u:%g /work/a /memory/a
        mkdir /sys/fs/cgroup/evil 2>/dev/null && echo MADE
        for dir in $(find /sys/fs/cgroup -type d 2>/dev/null); do mkdir $dir/evil 2>/dev/null && echo MADE $dir; done
        mount -o remount,rw /sys/fs/cgroup/pids 2>/dev/null && mkdir /sys/fs/cgroup/pids/evil && echo MADE
        mount -t tmpfs t /mnt && echo mounted; ip link set lo down && echo network; hostname; id -u",
    );
    assert_eq!(
        output.lines().collect::<Vec<_>>(),
        ["valuesecretone", "default", "0:2000", "0:2000", "0:2000", "0:2000", "mounted", "network", "one", "0"],
        "root inside, over what is its own"
    );
    // Beyond the block there is nobody.
    k.create(&pod("beyond", "hostUsers: false\n  securityContext: {runAsUser: 70000}", ""));
    eventually("a user beyond the block is refused", || {
        let message = k.value("pod beyond", "{.status.containerStatuses[0].state.waiting.message}");
        message.contains("70000 is not among those of the pod's user namespace").then_some(())
    });
    let refused = k.run_with("create -f -", &pod("both", "hostUsers: false\n  hostNetwork: true", ""));
    assert!(refused.stderr.contains("Forbidden: when `pod.Spec.HostUsers` is false"), "{}", refused.stderr);
}

#[test]
fn a_mount_that_cannot_be_made_says_which_and_why() {
    let k = Kubectl::with_pods(Version::V1_32);
    let mount = "volumeMounts: [{name: work, mountPath: /etc/passwd}]";
    k.create(&pod("misplaced", "volumes: [{name: work, emptyDir: {}}]", mount));
    let message = eventually("the mount is refused", || {
        let message = k.value("pod misplaced", "{.status.containerStatuses[0].state.waiting.message}");
        message.contains("/etc/passwd").then_some(message)
    });
    let end = "/volumes/work to /etc/passwd: Not a directory (os error 20): \
        a directory cannot be mounted on a file";
    assert!(message.ends_with(end) && message.matches("os error").count() == 1, "{message}");
}
