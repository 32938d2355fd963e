//! Delays the machine's shutdown until its pods are evicted (`--drain-on-stop`): holds systemd-logind's inhibitor lock, and stops
//! this process as SIGTERM would when logind says that the machine shuts down.
//!
//! logind waits until the lock is gone, which it is when the process ends, but at most its own `InhibitDelayMaxSec` (5 s
//! stock): if that is shorter than the drain may take, a warning says what to set. Where there is no logind, nothing is
//! held; systemd's unit of this process then has `TimeoutStopSec` to stop in. A logind that is started anew is asked again.
//!
//! Upstream's kubelet changes logind's configuration by itself. Not here: it is the machine's owner's.

use std::{path::Path, time::Duration};

use futures::StreamExt;
use mainstay_errors::error_chain;
use rustix::process::{Signal, getpid, kill_process};
use tokio_util::sync::CancellationToken;
use zbus::{Connection, OwnedFd, proxy};

/// Before logind is asked again after it, or the bus, went away.
const RETRY: Duration = Duration::from_secs(10);
const SOCKETS: [&str; 2] = ["/run/dbus/system_bus_socket", "/var/run/dbus/system_bus_socket"];

#[proxy(
    interface = "org.freedesktop.login1.Manager",
    default_service = "org.freedesktop.login1",
    default_path = "/org/freedesktop/login1"
)]
trait LoginManager {
    async fn inhibit(&self, what: &str, who: &str, why: &str, mode: &str) -> zbus::Result<OwnedFd>;

    #[zbus(property, name = "InhibitDelayMaxUSec")]
    fn inhibit_delay_max(&self) -> zbus::Result<u64>;

    #[zbus(signal)]
    fn prepare_for_shutdown(&self, start: bool) -> zbus::Result<()>;
}

/// Why the lock is not held any more.
enum Ended {
    /// This process has begun to stop: the lock stays until it has ended.
    Stopping(OwnedFd),
    ManagerLost,
}

/// Holds the lock until `ended`, when the drain is over. `drain`: how long that may take.
pub async fn hold_until(ended: CancellationToken, drain: Duration) {
    if std::env::var_os("DBUS_SYSTEM_BUS_ADDRESS").is_none() && !SOCKETS.iter().any(|path| Path::new(path).exists()) {
        tracing::debug!("there is no system bus; a shutdown of the machine is not delayed");
        return;
    }
    let mut is_first = true;
    loop {
        let held = tokio::select! {
            held = hold(drain, is_first) => held,
            () = ended.cancelled() => return,
        };
        match held {
            Ok(Ended::Stopping(lock)) => {
                ended.cancelled().await;
                drop(lock);
                return;
            }
            Ok(Ended::ManagerLost) => tracing::warn!("systemd-logind is gone; will ask it again to delay shutdowns"),
            Err(error) if is_first => {
                let error = error_chain(&error);
                tracing::info!(
                    error,
                    "systemd-logind does not answer; a shutdown of the machine is not delayed until it does"
                );
            }
            Err(error) => tracing::debug!(error = error_chain(&error), "systemd-logind does not answer"),
        }
        is_first = false;
        tokio::select! {
            () = tokio::time::sleep(RETRY) => {}
            () = ended.cancelled() => return,
        }
    }
}

async fn hold(drain: Duration, is_first: bool) -> zbus::Result<Ended> {
    let bus = Connection::system().await?;
    let manager = LoginManagerProxy::new(&bus).await?;
    let mut owners = manager.inner().receive_owner_changed().await?;
    // Before the lock: no shutdown falls between.
    let mut shutdowns = manager.receive_prepare_for_shutdown().await?;
    let lock = manager.inhibit("shutdown", "mainstay", "Pods of this machine are evicted", "delay").await?;
    let allowed = Duration::from_micros(manager.inhibit_delay_max().await.unwrap_or(0));
    tracing::info!(?allowed, "systemd-logind delays a shutdown of this machine until its pods are evicted");
    if allowed < drain && is_first {
        tracing::warn!(
            ?allowed,
            ?drain,
            "systemd-logind waits for less than --drain-on-stop-timeout; set InhibitDelayMaxSec in /etc/systemd/logind.conf.d/mainstay.conf"
        );
    }
    loop {
        tokio::select! {
            shutdown = shutdowns.next() => {
                let Some(shutdown) = shutdown else { return Ok(Ended::ManagerLost) };
                if shutdown.args().is_ok_and(|own| own.start) {
                    tracing::info!("the machine shuts down; stopping");
                    if let Err(error) = kill_process(getpid(), Signal::TERM) {
                        tracing::error!(%error, "cannot stop this process");
                    }
                    return Ok(Ended::Stopping(lock));
                }
            }
            // The first is who owns the name now.
            owner = owners.next() => match owner {
                Some(Some(_)) => {}
                Some(None) | None => return Ok(Ended::ManagerLost),
            },
        }
    }
}
