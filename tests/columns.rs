//! The columns of every kind, as `kubectl get` and, after the bar, `kubectl get -o wide` show them.

use http::{Request, header};
use serde_json::Value;

use crate::harness::Cluster;

const EXPECTED: &str = "
v1 configmaps: Name, Data, Age
v1 endpoints: Name, Endpoints, Age
v1 events: Last Seen, Type, Reason, Object, Message | Subobject, Source, First Seen, Count, Name
v1 limitranges: Name, Created At
v1 namespaces: Name, Status, Age
v1 nodes: Name, Status, Roles, Age, Version | Internal-IP, External-IP, OS-Image, Kernel-Version, Container-Runtime
v1 componentstatuses: Name, Status, Message, Error
v1 persistentvolumeclaims: Name, Status, Volume, Capacity, Access Modes, StorageClass, VolumeAttributesClass, Age | VolumeMode
v1 persistentvolumes: Name, Capacity, Access Modes, Reclaim Policy, Status, Claim, StorageClass, VolumeAttributesClass, Reason, Age | VolumeMode
v1 pods: Name, Ready, Status, Restarts, Age | IP, Node, Nominated Node, Readiness Gates
v1 podtemplates: Name, Containers, Images, Pod Labels
v1 replicationcontrollers: Name, Desired, Current, Ready, Age | Containers, Images, Selector
v1 resourcequotas: Name, Request, Limit, Age
v1 secrets: Name, Type, Data, Age
v1 serviceaccounts: Name, Secrets, Age
v1 services: Name, Type, Cluster-IP, External-IP, Port(s), Age | Selector
admissionregistration.k8s.io/v1 mutatingadmissionpolicies: Name, Mutations, ParamKind, Age
admissionregistration.k8s.io/v1 mutatingadmissionpolicybindings: Name, PolicyName, ParamRef, Age
admissionregistration.k8s.io/v1 mutatingwebhookconfigurations: Name, Webhooks, Age
admissionregistration.k8s.io/v1 validatingadmissionpolicies: Name, Validations, ParamKind, Age
admissionregistration.k8s.io/v1 validatingadmissionpolicybindings: Name, PolicyName, ParamRef, Age
admissionregistration.k8s.io/v1 validatingwebhookconfigurations: Name, Webhooks, Age
apiextensions.k8s.io/v1 customresourcedefinitions: Name, Created At
apiregistration.k8s.io/v1 apiservices: Name, Service, Available, Age
apps/v1 controllerrevisions: Name, Controller, Revision, Age
apps/v1 daemonsets: Name, Desired, Current, Ready, Up-to-date, Available, Node Selector, Age | Containers, Images, Selector
apps/v1 deployments: Name, Ready, Up-to-date, Available, Age | Containers, Images, Selector
apps/v1 replicasets: Name, Desired, Current, Ready, Age | Containers, Images, Selector
apps/v1 statefulsets: Name, Ready, Age | Containers, Images
autoscaling/v2 horizontalpodautoscalers: Name, Reference, Targets, MinPods, MaxPods, Replicas, Age
autoscaling/v1 horizontalpodautoscalers: Name, Reference, Targets, MinPods, MaxPods, Replicas, Age
batch/v1 cronjobs: Name, Schedule, Timezone, Suspend, Active, Last Schedule, Age | Containers, Images, Selector
batch/v1 jobs: Name, Status, Completions, Duration, Age | Containers, Images, Selector
certificates.k8s.io/v1 certificatesigningrequests: Name, Age, SignerName, Requestor, RequestedDuration, Condition
certificates.k8s.io/v1 clustertrustbundles: Name, SignerName
certificates.k8s.io/v1 podcertificaterequests: Name, PodName, ServiceAccountName, NodeName, SignerName, State, Age
coordination.k8s.io/v1 leases: Name, Holder, Age
discovery.k8s.io/v1 endpointslices: Name, AddressType, Ports, Endpoints, Age
events.k8s.io/v1 events: Last Seen, Type, Reason, Object, Message | Subobject, Source, First Seen, Count, Name
flowcontrol.apiserver.k8s.io/v1 flowschemas: Name, PriorityLevel, MatchingPrecedence, DistinguisherMethod, Age, MissingPL
flowcontrol.apiserver.k8s.io/v1 prioritylevelconfigurations: Name, Type, NominalConcurrencyShares, Queues, HandSize, QueueLengthLimit, Age
networking.k8s.io/v1 ingressclasses: Name, Controller, Parameters, Age
networking.k8s.io/v1 ingresses: Name, Class, Hosts, Address, Ports, Age
networking.k8s.io/v1 ipaddresses: Name, ParentRef
networking.k8s.io/v1 networkpolicies: Name, Pod-Selector, Age
networking.k8s.io/v1 servicecidrs: Name, CIDRs, Age
metrics.k8s.io/v1beta1 nodes: Name, cpu, memory, Window
metrics.k8s.io/v1beta1 pods: Name, cpu, memory, Window
kubernikus.sap.cc/v1 klusters: Name, Phase, Version, Nodes, API, Age | Project, Message
mainstay.dev/v1 cloudresources: Name, Resource, Phase, ID, Owner, Age | Cloud, Project, Message
mainstay.dev/v1 klusters: Name, Phase, Version, Nodes, API, Age | Project, Message
mainstay.dev/v1 nodepools: Name, Kluster, Flavor, Size, Running, Healthy, Schedulable, Age
mainstay.dev/v1 teardownreceipts: Name, Cluster, Result, Gone, Age
mainstay.dev/v1 configtemplates: Name, Output, Version, Status, Consumers, Age
mainstay.dev/v1 machinefiles: Name, Node, Path, Version, Wanted, Status, Age
mainstay.dev/v1 machines: Name, Version, Wanted, Seen, Configured, Validated, Unaccounted, Age | Provisioned, Release
mainstay.dev/v1 offers: Name, CPU, Memory, Pods, Ports, Pools, TTL, Age | Explicit-Ports, Seen
mainstay.dev/v1 releases: Name, Version, Phase, Wave, Updated, Failed, Age | Message
mainstay.dev/v1 servicetables: Name, Endpoints, Nodes, Age
node.k8s.io/v1 runtimeclasses: Name, Handler, Age
policy/v1 poddisruptionbudgets: Name, Min Available, Max Unavailable, Allowed Disruptions, Age
rbac.authorization.k8s.io/v1 clusterrolebindings: Name, Role, Age | Users, Groups, ServiceAccounts
rbac.authorization.k8s.io/v1 clusterroles: Name, Created At
rbac.authorization.k8s.io/v1 rolebindings: Name, Role, Age | Users, Groups, ServiceAccounts
rbac.authorization.k8s.io/v1 roles: Name, Created At
resource.k8s.io/v1 deviceclasses: Name, Age
resource.k8s.io/v1 devicetaintrules: Name, Age
resource.k8s.io/v1 resourceclaims: Name, State, Age
resource.k8s.io/v1 resourceclaimtemplates: Name, Age
resource.k8s.io/v1 resourceslices: Name, Node, Driver, Pool, Age
scheduling.k8s.io/v1 priorityclasses: Name, Value, Global-Default, Age, PreemptionPolicy
storage.k8s.io/v1 csidrivers: Name, AttachRequired, PodInfoOnMount, StorageCapacity, TokenRequests, RequiresRepublish, Modes, Age
storage.k8s.io/v1 csinodes: Name, Drivers, Age
storage.k8s.io/v1 csistoragecapacities: Name, StorageClassName, Capacity
storage.k8s.io/v1 storageclasses: Name, Provisioner, ReclaimPolicy, VolumeBindingMode, AllowVolumeExpansion, Age
storage.k8s.io/v1 volumeattachments: Name, Attacher, PV, Node, Attached, Age
storage.k8s.io/v1 volumeattributesclasses: Name, DriverName, Age
storagemigration.k8s.io/v1 storageversionmigrations: Name, Resource, State, Age
";

async fn get(client: &kube::Client, path: &str, accept: &str) -> Value {
    let request = Request::get(path).header(header::ACCEPT, accept).body(Vec::new()).unwrap();
    client.request(request).await.unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The names of the columns, as one line of [`EXPECTED`] has them.
fn columns(table: &Value) -> String {
    let names = |wide: bool| {
        let chosen = list(&table["columnDefinitions"]).filter(|c| (c["priority"] != 0) == wide);
        chosen.map(|c| text(&c["name"])).collect::<Vec<_>>().join(", ")
    };
    match names(true).as_str() {
        "" => names(false),
        wide => format!("{} | {wide}", names(false)),
    }
}

#[tokio::test]
async fn every_kind_has_upstreams_columns() {
    let cluster = Cluster::start();
    let client = cluster.client().await;
    let groups = get(&client, "/apis", "application/json").await;
    let versions = list(&groups["groups"]).flat_map(|group| list(&group["versions"]));
    let mut paths = vec![("v1".to_owned(), "/api/v1".to_owned())];
    paths.extend(versions.map(|v| text(&v["groupVersion"])).map(|v| (v.to_owned(), format!("/apis/{v}"))));
    let mut shown = Vec::new();
    for (version, path) in paths {
        for resource in list(&get(&client, &path, "application/json").await["resources"]) {
            let name = text(&resource["name"]);
            if !list(&resource["verbs"]).any(|verb| verb == "list") {
                continue;
            }
            let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
            let table = get(&client, &format!("{path}/{name}"), table).await;
            assert_eq!(text(&table["kind"]), "Table");
            shown.push(format!("{version} {name}: {}", columns(&table)));
        }
    }
    let expected: Vec<&str> = EXPECTED.trim().lines().collect();
    for line in &expected {
        assert!(shown.iter().any(|s| s == line), "wanted {line}\ngot {shown:#?}");
    }
    let strange: Vec<_> = shown.iter().filter(|line| !expected.contains(&line.as_str())).collect();
    assert!(strange.is_empty(), "kinds that no line above speaks of: {strange:#?}");
}
