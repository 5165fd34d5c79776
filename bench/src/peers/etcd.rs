//! The lock API of etcd, with a lease for each caller. Building its client needs `protoc`, so it is built only with
//! `RUSTFLAGS='--cfg etcd'`.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use etcd_client::{Client, LockOptions};
use tempfile::TempDir;

use super::failed;
use crate::load::{Measured, Watched, repeat};

/// A server on a free port, which ends when this is dropped.
pub(crate) struct Etcd {
    process: Child,
    url: String,
    _folder: TempDir,
}

impl Etcd {
    pub(crate) async fn start() -> Result<Self, String> {
        let folder = tempfile::tempdir().map_err(failed)?;
        let [url, peer] = [free_url()?, free_url()?];
        let process = Command::new("etcd")
            .arg("--data-dir")
            .arg(folder.path())
            .args([
                "--listen-client-urls",
                &url,
                "--advertise-client-urls",
                &url,
            ])
            .args([
                "--listen-peer-urls",
                &peer,
                "--initial-advertise-peer-urls",
                &peer,
            ])
            .args(["--initial-cluster", &format!("default={peer}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("not installed: `apt-get install etcd-server`: {error}"))?;
        let etcd = Self {
            process,
            url,
            _folder: folder,
        };
        let started = Instant::now();
        loop {
            let ready = match Client::connect([&etcd.url], None).await {
                Ok(mut client) => client.get("ready", None).await.map(|_| ()),
                Err(error) => Err(error),
            };
            match ready {
                Ok(()) => return Ok(etcd),
                Err(error) if started.elapsed() > Duration::from_secs(30) => {
                    return Err(failed(error));
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }

    pub(crate) async fn cycles(
        &self,
        callers: usize,
        duration: Duration,
    ) -> Result<Measured, String> {
        self.repeat(false, callers, duration).await
    }

    /// One lock for all callers; etcd queues them.
    pub(crate) async fn hand_overs(
        &self,
        callers: usize,
        duration: Duration,
    ) -> Result<Measured, String> {
        self.repeat(true, callers, duration).await
    }

    async fn repeat(
        &self,
        is_one_key: bool,
        callers: usize,
        duration: Duration,
    ) -> Result<Measured, String> {
        let mut client = Client::connect([&self.url], None).await.map_err(failed)?;
        let mut leases = Vec::new();
        for _ in 0..callers {
            let lease = client.lease_grant(60, None).await.map_err(failed)?;
            leases.push(lease.id());
        }
        repeat(
            callers,
            duration,
            Watched::default(),
            move |caller, serial| {
                let mut client = client.clone();
                let options = LockOptions::new().with_lease(leases[caller]);
                async move {
                    let name = match is_one_key {
                        true => "hot".to_owned(),
                        false => format!("cycle:{serial}"),
                    };
                    let locked = client.lock(name, Some(options)).await.map_err(failed)?;
                    client.unlock(locked.key()).await.map_err(failed)?;
                    Ok(())
                }
            },
        )
        .await
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn free_url() -> Result<String, String> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok(format!("http://{address}"))
}
