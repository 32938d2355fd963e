//! Health of devices, as their drivers stream it (`DRAResourceHealth`), for `allocatedResourcesStatus` of containers.
//!
//! A driver sends a list of all its devices whenever something changes, and repeats it. What it does not repeat within the
//! device's time is unknown, and so is everything of a driver whose stream has ended; the stream is opened anew after a
//! while. Nothing is done about an unhealthy device here: that is up to drivers (by taints) and users.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// As upstream's, for devices that do not say.
const TIMEOUT: Duration = Duration::from_secs(30);
/// A device that asks for more than this means that it never changes.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(366 * 24 * 3600);
const LONGEST_MESSAGE: usize = 1024;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Health {
    #[default]
    Unknown,
    Healthy,
    Unhealthy,
}

impl Health {
    /// By its number in the protocol.
    fn parse(number: i32) -> Self {
        match number {
            1 => Self::Healthy,
            2 => Self::Unhealthy,
            _ => Self::Unknown,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "Unknown",
            Self::Healthy => "Healthy",
            Self::Unhealthy => "Unhealthy",
        }
    }
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct WatchRequest {}

#[derive(Clone, PartialEq, prost::Message)]
pub struct WatchResponse {
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<HealthMessage>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct HealthMessage {
    #[prost(message, optional, tag = "1")]
    pub device: Option<DeviceIdentifier>,
    #[prost(int32, tag = "2")]
    pub health: i32,
    #[prost(int64, tag = "3")]
    pub last_updated_time: i64,
    #[prost(int64, tag = "4")]
    pub health_check_timeout_seconds: i64,
    #[prost(string, tag = "5")]
    pub message: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct DeviceIdentifier {
    #[prost(string, tag = "1")]
    pub pool_name: String,
    #[prost(string, tag = "2")]
    pub device_name: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct HealthReport {
    health: Health,
    message: String,
    /// Unknown from then on.
    valid_until: Instant,
}

/// The devices of one driver, by pool and name.
type DriverDevices = HashMap<(String, String), HealthReport>;

/// What is known of all drivers.
#[derive(Debug, Default)]
pub struct HealthCache {
    drivers: Mutex<HashMap<String, DriverDevices>>,
}

impl HealthCache {
    pub fn get(&self, driver: &str, pool: &str, device: &str, now: Instant) -> (Health, String) {
        let drivers = self.drivers.lock();
        let report = drivers.get(driver).and_then(|devices| devices.get(&(pool.to_owned(), device.to_owned())));
        let valid = report.filter(|report| now < report.valid_until);
        valid.map(|report| (report.health, report.message.clone())).unwrap_or_default()
    }

    /// Takes in a driver's list. Returns whether any device changed.
    pub fn update(&self, driver: &str, response: WatchResponse, now: Instant) -> bool {
        let mut drivers = self.drivers.lock();
        let devices = drivers.entry(driver.to_owned()).or_default();
        let mut changed = forget_expired(devices, now);
        for message in response.devices {
            let Some(device) = message.device else { continue };
            let timeout = match u64::try_from(message.health_check_timeout_seconds) {
                Ok(seconds) if seconds > 0 => Duration::from_secs(seconds).min(LONGEST_TIMEOUT),
                Ok(_) | Err(_) => TIMEOUT,
            };
            let report = HealthReport {
                health: Health::parse(message.health),
                message: shorten(message.message),
                valid_until: now + timeout,
            };
            let known = devices.insert((device.pool_name, device.device_name), report.clone());
            changed |= known.is_none_or(|known| (known.health, known.message) != (report.health, report.message));
        }
        changed
    }

    /// Forgets what was not repeated in time. Returns whether there was anything.
    pub fn expire(&self, driver: &str, now: Instant) -> bool {
        self.drivers.lock().get_mut(driver).is_some_and(|devices| forget_expired(devices, now))
    }

    /// When something of a driver becomes unknown.
    pub fn next_expiry(&self, driver: &str) -> Option<Instant> {
        self.drivers.lock().get(driver)?.values().map(|report| report.valid_until).min()
    }

    /// The driver is gone. Returns whether anything was known of it.
    pub fn clear(&self, driver: &str) -> bool {
        self.drivers.lock().remove(driver).is_some_and(|devices| !devices.is_empty())
    }
}

fn forget_expired(devices: &mut DriverDevices, now: Instant) -> bool {
    let before = devices.len();
    devices.retain(|_, report| now < report.valid_until);
    devices.len() < before
}

fn shorten(mut message: String) -> String {
    if message.chars().count() > LONGEST_MESSAGE {
        message = message.chars().take(LONGEST_MESSAGE - 3).collect();
        message.push_str("...");
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(device: &str, health: i32, timeout: i64, message: &str) -> HealthMessage {
        HealthMessage {
            device: Some(DeviceIdentifier { pool_name: "p".to_owned(), device_name: device.to_owned() }),
            health,
            last_updated_time: 0,
            health_check_timeout_seconds: timeout,
            message: message.to_owned(),
        }
    }

    #[test]
    fn health_is_what_the_driver_said_last_until_its_time_is_over() {
        let (cache, start) = (HealthCache::default(), Instant::now());
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let health = |device: &str, seconds| cache.get("d", "p", device, at(seconds)).0.as_str();
        assert_eq!(health("a", 0), "Unknown");
        let list = || WatchResponse { devices: vec![report("a", 1, 0, ""), report("b", 2, 5, "too hot")] };
        assert!(cache.update("d", list(), at(0)));
        assert_eq!((health("a", 29), health("a", 30)), ("Healthy", "Unknown"));
        assert_eq!((health("b", 4), health("b", 5)), ("Unhealthy", "Unknown"));
        assert_eq!(cache.get("d", "p", "b", at(1)).1, "too hot");
        assert_eq!(cache.next_expiry("d"), Some(at(5)));
        assert!(!cache.update("d", list(), at(3)), "repeated");
        assert!(!cache.expire("d", at(7)));
        assert!(cache.expire("d", at(8)), "b was not repeated");
        assert!(cache.update("d", WatchResponse { devices: vec![report("a", 2, 0, "")] }, at(9)));
        assert_eq!(health("a", 10), "Unhealthy");
        assert!(cache.clear("d") && !cache.clear("d"));
        assert_eq!(health("a", 10), "Unknown");
    }

    #[test]
    fn odd_reports_are_bounded() {
        let (cache, now) = (HealthCache::default(), Instant::now());
        let nameless = HealthMessage { device: None, ..report("a", 1, 0, "") };
        assert!(!cache.update("d", WatchResponse { devices: vec![nameless] }, now));
        let long = "ä".repeat(5000);
        let devices = vec![report("a", 7, i64::MAX, &long), report("b", 1, i64::MIN, "")];
        assert!(cache.update("d", WatchResponse { devices }, now));
        let (health, message) = cache.get("d", "p", "a", now);
        assert_eq!((health, message.chars().count()), (Health::Unknown, 1024));
        assert!(message.ends_with("..."));
        assert_eq!(cache.get("d", "p", "b", now + Duration::from_secs(29)).0, Health::Healthy);
    }
}
