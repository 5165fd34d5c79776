//! The data folder of a server. Making one takes a second, so it is made once and copied.

use std::fs::{self, File};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};

use super::{USER, program, run, server_command};

/// Copies a fresh data folder into this one, and returns it.
pub(super) fn make(folder: &Path) -> PathBuf {
    let data = folder.join("data");
    run(server_command("cp".into())
        .args(["-r", "--no-target-directory"])
        .arg(template())
        .arg(&data));
    run(server_command("chmod".into()).arg("700").arg(&data));
    data
}

/// Gives a folder to the user of the server.
pub(super) fn give(folder: &Path) {
    if rustix::process::geteuid().is_root() {
        let (user, group) = ids("postgres");
        chown(folder, Some(user), Some(group)).unwrap();
    }
}

/// The ids of a user and of its group.
fn ids(user: &str) -> (u32, u32) {
    let users = fs::read_to_string("/etc/passwd").unwrap();
    let line = users
        .lines()
        .find(|line| line.split(':').next() == Some(user));
    let line = line.unwrap_or_else(|| panic!("there is no user {user}"));
    let mut fields = line.split(':').skip(2);
    let mut id = || fields.next().unwrap().parse().unwrap();
    (id(), id())
}

/// A data folder that is never used itself. All builds of this machine and user share it.
fn template() -> PathBuf {
    let version = program("postgres").to_string_lossy().replace('/', "-");
    let user = rustix::process::geteuid().as_raw();
    let folder = std::env::temp_dir().join(format!("forrst-postgres{version}-{user}"));
    fs::create_dir_all(&folder).unwrap();
    give(&folder);
    let making = File::create(folder.join("making")).unwrap();
    making.lock().unwrap();
    let template = folder.join("template");
    if !template.exists() {
        let new = folder.join("new");
        run(server_command("rm".into()).arg("-rf").arg(&new));
        run(server_command(program("initdb"))
            .args([
                "--no-sync",
                "--auth=trust",
                "--encoding=UTF8",
                "--no-locale",
            ])
            .args(["--wal-segsize=1", "--username", USER, "-D"])
            .arg(&new));
        fs::rename(new, &template).unwrap();
    }
    template
}
