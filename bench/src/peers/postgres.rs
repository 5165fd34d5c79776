//! Locks in Postgres: advisory locks, and a table with a row for each lock.

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio_postgres::{Client, Config, NoTls, Statement};

use super::failed;
use crate::load::{Measured, Watched, repeat};

const USER: &str = "bench";
const TABLE: &str = "
    CREATE TABLE IF NOT EXISTS locks (key text PRIMARY KEY, owner bigint NOT NULL, expires_at timestamptz NOT NULL, fence bigint NOT NULL);
    CREATE SEQUENCE IF NOT EXISTS fences";
const TAKE_ROW: &str = "
    INSERT INTO locks VALUES ($1, $2, now() + interval '30 seconds', nextval('fences'))
    ON CONFLICT (key) DO UPDATE SET owner = excluded.owner, expires_at = excluded.expires_at, fence = excluded.fence
    WHERE locks.expires_at <= now() RETURNING fence";
const DELETE_ROW: &str = "DELETE FROM locks WHERE key = $1 AND owner = $2";

/// A server in a temporary folder, reached through a socket there. It ends when this is dropped.
pub(crate) struct Postgres {
    process: Child,
    folder: TempDir,
}

impl Postgres {
    /// The folder of its programs; `None` if it is not installed.
    fn programs() -> Option<PathBuf> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let on_path = std::env::split_paths(&path);
        // Debian has a folder for each version, which is not on the path.
        let debian = std::fs::read_dir("/usr/lib/postgresql")
            .into_iter()
            .flatten();
        let debian = debian.flatten().map(|version| version.path().join("bin"));
        let mut folders = debian.chain(on_path);
        folders.find(|folder| folder.join("initdb").exists() && folder.join("postgres").exists())
    }

    /// Starts a server with the default settings: every commit waits for the disk.
    pub(crate) async fn start() -> Result<Self, String> {
        let programs = Self::programs()
            .ok_or("not installed: `apt-get install postgresql` and run it again")?;
        let folder = tempfile::tempdir().map_err(failed)?;
        let user = unprivileged_user()?;
        if let Some((uid, gid)) = user {
            chown(folder.path(), Some(uid), Some(gid)).map_err(failed)?;
        }
        let data = folder.path().join("data");
        let command = |program: &str| {
            let mut command = Command::new(programs.join(program));
            if let Some((uid, gid)) = user {
                command.uid(uid).gid(gid);
            }
            command.current_dir(folder.path()).stdin(Stdio::null());
            command
        };
        let initialised = command("initdb")
            .args(["--auth=trust", "--no-sync", "--username", USER, "--pgdata"])
            .arg(&data)
            .output()
            .map_err(failed)?;
        if !initialised.status.success() {
            let errors = String::from_utf8_lossy(&initialised.stderr);
            return Err(format!("initdb failed: {errors}"));
        }
        let process = command("postgres")
            .arg("-D")
            .arg(&data)
            .arg("-k")
            .arg(folder.path())
            .args(["-c", "listen_addresses=", "-c", "max_connections=300"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed)?;
        let server = Self { process, folder };
        server.wait_until_ready().await?;
        Ok(server)
    }

    async fn wait_until_ready(&self) -> Result<(), String> {
        let started = Instant::now();
        loop {
            match self.connect().await {
                Ok(client) => return client.batch_execute(TABLE).await.map_err(failed),
                Err(error) if started.elapsed() > Duration::from_secs(30) => return Err(error),
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    /// The URL for our store.
    pub(crate) fn url(&self) -> String {
        let folder = self.folder.path().display().to_string();
        let folder = folder.replace('/', "%2F");
        format!("postgres://{USER}@{folder}/postgres?sslmode=disable")
    }

    /// How many transactions there were, as far as sessions have reported them: they do so within a second.
    pub(crate) async fn transactions(&self) -> Result<f64, String> {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let client = self.connect().await?;
        let statement = "SELECT (xact_commit + xact_rollback)::float8 FROM pg_stat_database WHERE datname = 'postgres'";
        let row = client.query_one(statement, &[]).await.map_err(failed)?;
        Ok(row.get(0))
    }

    async fn connect(&self) -> Result<Client, String> {
        let mut config = Config::new();
        config
            .host_path(self.folder.path())
            .user(USER)
            .dbname("postgres");
        let (client, connection) = config.connect(NoTls).await.map_err(failed)?;
        tokio::spawn(connection);
        Ok(client)
    }

    /// A connection for each caller, with prepared statements: an advisory lock belongs to a session.
    async fn callers<const N: usize>(
        &self,
        count: usize,
        statements: [&str; N],
    ) -> Result<Vec<Arc<(Client, [Statement; N])>>, String> {
        let mut callers = Vec::new();
        for _ in 0..count {
            let client = self.connect().await?;
            let mut prepared = Vec::new();
            for statement in statements {
                prepared.push(client.prepare(statement).await.map_err(failed)?);
            }
            let prepared = prepared
                .try_into()
                .map_err(|_| "as many as there are statements")?;
            callers.push(Arc::new((client, prepared)));
        }
        Ok(callers)
    }

    /// `pg_advisory_lock` and `pg_advisory_unlock`, with a new key for each cycle or one key for all.
    pub(crate) async fn advisory(
        &self,
        is_one_key: bool,
        callers: usize,
        duration: Duration,
    ) -> Result<Measured, String> {
        let statements = [
            "SELECT pg_advisory_lock($1)",
            "SELECT pg_advisory_unlock($1)",
        ];
        let sessions = self.callers(callers, statements).await?;
        repeat(
            callers,
            duration,
            Watched::default(),
            move |caller, serial| {
                let session = sessions[caller].clone();
                async move {
                    let (client, [lock, unlock]) = &*session;
                    let key = if is_one_key {
                        0
                    } else {
                        i64::try_from(serial).map_err(failed)?
                    };
                    client.execute(lock, &[&key]).await.map_err(failed)?;
                    client.execute(unlock, &[&key]).await.map_err(failed)?;
                    Ok(())
                }
            },
        )
        .await
    }

    /// A row for each lock, with a fence: one transaction acquires it and one releases it.
    pub(crate) async fn rows(
        &self,
        callers: usize,
        duration: Duration,
    ) -> Result<Measured, String> {
        let sessions = self.callers(callers, [TAKE_ROW, DELETE_ROW]).await?;
        repeat(
            callers,
            duration,
            Watched::default(),
            move |caller, serial| {
                let session = sessions[caller].clone();
                async move {
                    let (client, [take, delete]) = &*session;
                    let (key, owner) = (
                        format!("row:{serial}"),
                        i64::try_from(serial).map_err(failed)?,
                    );
                    let taken = client.query(take, &[&key, &owner]).await.map_err(failed)?;
                    let deleted = client
                        .execute(delete, &[&key, &owner])
                        .await
                        .map_err(failed)?;
                    match (taken.len(), deleted) {
                        (1, 1) => Ok(()),
                        other => Err(format!("another caller has {key}: {other:?}")),
                    }
                }
            },
        )
        .await
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.process);
        // SIGINT is Postgres's fast shutdown, which also ends its child processes.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
        let _ = self.process.wait();
    }
}

/// Postgres refuses to run as root; as root, we start it as the user `postgres` or `nobody`.
fn unprivileged_user() -> Result<Option<(u32, u32)>, String> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let passwd = std::fs::read_to_string(Path::new("/etc/passwd")).map_err(failed)?;
    let user = |name: &str| {
        let line = passwd
            .lines()
            .find(|line| line.split(':').next() == Some(name))?;
        let mut ids = line.split(':').skip(2).map(str::parse);
        Some((ids.next()?.ok()?, ids.next()?.ok()?))
    };
    let user = user("postgres").or_else(|| user("nobody"));
    user.map(Some).ok_or_else(|| {
        "there is no user `postgres` or `nobody` to run it as, and it refuses to run as root"
            .to_owned()
    })
}
