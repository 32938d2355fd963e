//! Octavia: load balancers with their listeners, pools, members and health monitors.
//!
//! Octavia refuses changes (409) while a load balancer is `PENDING_…`: whoever gets [`CloudError::is_conflict`] looks at the provisioning status again.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{CloudError, Service, Session, compute::null_as_default, session::Request};

const SERVICE: Service = Service::LoadBalancer;

#[derive(Clone, Debug)]
pub struct LoadBalancerClient(Session);

impl Session {
    pub fn load_balancer(&self) -> LoadBalancerClient {
        LoadBalancerClient(self.clone())
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct LoadBalancer {
    pub id: String,
    #[serde(deserialize_with = "null_as_default")]
    pub name: String,
    #[serde(deserialize_with = "null_as_default")]
    pub description: String,
    /// `ACTIVE`, `PENDING_CREATE`, `PENDING_UPDATE`, `PENDING_DELETE`, `ERROR`, `DELETED`.
    pub provisioning_status: String,
    #[serde(deserialize_with = "null_as_default")]
    pub operating_status: String,
    #[serde(deserialize_with = "null_as_default")]
    pub vip_address: String,
    pub vip_port_id: Option<String>,
    pub vip_subnet_id: Option<String>,
    pub tags: Vec<String>,
    pub project_id: String,
    pub created_at: Option<LocalTime>,
}

/// Octavia writes times without a zone: they are UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "String")]
pub struct LocalTime(pub Option<Timestamp>);

impl From<String> for LocalTime {
    fn from(text: String) -> Self {
        let with_zone = || text.parse().ok();
        let zoneless = || text.parse::<jiff::civil::DateTime>().ok()?.to_zoned(jiff::tz::TimeZone::UTC).ok();
        Self(with_zone().or_else(|| zoneless().map(|zoned| zoned.timestamp())))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct NewLoadBalancer {
    pub name: String,
    pub description: String,
    pub vip_subnet_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vip_address: Option<String>,
    pub tags: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Listener {
    pub id: String,
    #[serde(deserialize_with = "null_as_default")]
    pub name: String,
    pub protocol: String,
    pub protocol_port: i64,
    pub default_pool_id: Option<String>,
    pub provisioning_status: String,
    pub allowed_cidrs: Option<Vec<String>>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct NewListener {
    pub loadbalancer_id: String,
    pub name: String,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    pub protocol_port: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_cidrs: Option<Vec<String>>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Pool {
    pub id: String,
    #[serde(deserialize_with = "null_as_default")]
    pub name: String,
    pub protocol: String,
    pub lb_algorithm: String,
    pub healthmonitor_id: Option<String>,
    pub provisioning_status: String,
    pub session_persistence: Option<Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct NewPool {
    pub listener_id: String,
    pub name: String,
    pub protocol: String,
    pub lb_algorithm: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_persistence: Option<Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(default)]
pub struct Member {
    pub id: String,
    pub address: String,
    pub protocol_port: i64,
    #[serde(deserialize_with = "null_as_default")]
    pub name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct NewMember {
    pub name: String,
    pub address: String,
    pub protocol_port: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subnet_id: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct NewHealthMonitor {
    pub pool_id: String,
    /// `TCP`, `HTTP`, `UDP-CONNECT`…
    #[serde(rename = "type")]
    pub monitor_type: String,
    /// Seconds.
    pub delay: u32,
    pub timeout: u32,
    pub max_retries: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url_path: Option<String>,
}

#[derive(Deserialize)]
struct OneBalancer {
    loadbalancer: LoadBalancer,
}

#[derive(Deserialize)]
struct OneListener {
    listener: Listener,
}

#[derive(Deserialize)]
struct OnePool {
    pool: Pool,
}

impl LoadBalancerClient {
    pub async fn list_load_balancers(&self) -> Result<Vec<LoadBalancer>, CloudError> {
        self.0.list(Request::get(SERVICE, "list load balancers", "/lbaas/loadbalancers"), "loadbalancers").await
    }

    /// Load balancers with this description, which is the tag of the ledger.
    pub async fn list_load_balancers_by_description(&self, description: &str) -> Result<Vec<LoadBalancer>, CloudError> {
        let request = Request::get(SERVICE, "find load balancers by description", "/lbaas/loadbalancers")
            .query("description", description);
        let all: Vec<LoadBalancer> = self.0.list(request, "loadbalancers").await?;
        Ok(all.into_iter().filter(|balancer| balancer.description == description).collect())
    }

    pub async fn show_load_balancer(&self, id: &str) -> Result<Option<LoadBalancer>, CloudError> {
        let request = Request::get(SERVICE, "show load balancer", format!("/lbaas/loadbalancers/{id}"));
        Ok(self.0.call_optional::<OneBalancer>(request).await?.map(|found| found.loadbalancer))
    }

    pub async fn create_load_balancer(&self, balancer: &NewLoadBalancer) -> Result<LoadBalancer, CloudError> {
        let body = json!({"loadbalancer": balancer});
        let request = Request::post(SERVICE, "create load balancer", "/lbaas/loadbalancers", body);
        Ok(self.0.call::<OneBalancer>(request).await?.loadbalancer)
    }

    /// Asks for the removal of a load balancer with all that is in it; says whether there was one.
    pub async fn delete_load_balancer(&self, id: &str) -> Result<bool, CloudError> {
        let request = Request::delete(SERVICE, "delete load balancer", format!("/lbaas/loadbalancers/{id}"));
        self.0.call_delete(request.query("cascade", "true")).await
    }

    pub async fn list_listeners(&self, balancer: &str) -> Result<Vec<Listener>, CloudError> {
        let request = Request::get(SERVICE, "list listeners", "/lbaas/listeners").query("loadbalancer_id", balancer);
        self.0.list(request, "listeners").await
    }

    /// Creates a listener. Octavia refuses a second one of the protocol and port (409).
    pub async fn create_listener(&self, listener: &NewListener) -> Result<Listener, CloudError> {
        let request = Request::post(SERVICE, "create listener", "/lbaas/listeners", json!({"listener": listener}));
        Ok(self.0.call::<OneListener>(request).await?.listener)
    }

    pub async fn update_listener(&self, id: &str, fields: &Value) -> Result<(), CloudError> {
        let path = format!("/lbaas/listeners/{id}");
        let request = Request::put(SERVICE, "update listener", path, json!({"listener": fields}));
        self.0.call_without_answer(request).await
    }

    pub async fn delete_listener(&self, id: &str) -> Result<bool, CloudError> {
        self.0.call_delete(Request::delete(SERVICE, "delete listener", format!("/lbaas/listeners/{id}"))).await
    }

    pub async fn list_pools(&self, balancer: &str) -> Result<Vec<Pool>, CloudError> {
        let request = Request::get(SERVICE, "list pools", "/lbaas/pools").query("loadbalancer_id", balancer);
        self.0.list(request, "pools").await
    }

    /// Creates the default pool of a listener, which has one at most.
    pub async fn create_pool(&self, pool: &NewPool) -> Result<Pool, CloudError> {
        let request = Request::post(SERVICE, "create pool", "/lbaas/pools", json!({"pool": pool}));
        Ok(self.0.call::<OnePool>(request).await?.pool)
    }

    pub async fn delete_pool(&self, id: &str) -> Result<bool, CloudError> {
        self.0.call_delete(Request::delete(SERVICE, "delete pool", format!("/lbaas/pools/{id}"))).await
    }

    pub async fn list_members(&self, pool: &str) -> Result<Vec<Member>, CloudError> {
        self.0.list(Request::get(SERVICE, "list members", format!("/lbaas/pools/{pool}/members")), "members").await
    }

    /// Replaces all members of a pool.
    pub async fn set_members(&self, pool: &str, members: &[NewMember]) -> Result<(), CloudError> {
        let path = format!("/lbaas/pools/{pool}/members");
        let request = Request::put(SERVICE, "set members", path, json!({"members": members}));
        self.0.call_without_answer(request).await
    }

    /// Creates the health monitor of a pool, which has one at most.
    pub async fn create_health_monitor(&self, monitor: &NewHealthMonitor) -> Result<(), CloudError> {
        let body = json!({"healthmonitor": monitor});
        let request = Request::post(SERVICE, "create health monitor", "/lbaas/healthmonitors", body);
        self.0.call_without_answer(request).await
    }

    pub async fn delete_health_monitor(&self, id: &str) -> Result<bool, CloudError> {
        let path = format!("/lbaas/healthmonitors/{id}");
        self.0.call_delete(Request::delete(SERVICE, "delete health monitor", path)).await
    }
}
