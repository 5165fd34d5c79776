//! Checks of the files in `deploy/` that need neither Docker nor Kubernetes.

use std::path::{Path, PathBuf};
use std::process::Command;

use forrst_testkit::Serve;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every flag and variable that a file in `deploy/` uses.
fn words<'a>(text: &'a str, start: &str) -> Vec<&'a str> {
    let is_end = |c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_';
    text.split(is_end)
        .filter(|word| word.starts_with(start))
        .collect()
}

#[test]
fn the_files_in_deploy_use_existing_options() {
    let (_, help, _) = Serve::bare(env!("CARGO_BIN_EXE_forrst"), &["--help"]).run();
    let mut used = 0;
    for file in [
        "Dockerfile",
        "compose.yaml",
        "forrst.service",
        "kubernetes.yaml",
    ] {
        let text = std::fs::read_to_string(root().join("deploy").join(file)).unwrap();
        for word in words(&text, "FORRST_") {
            assert!(help.contains(word), "{file}: {word} is not an option");
            used += 1;
        }
    }
    assert!(used >= 4, "{used}");
}

#[test]
fn systemd_accepts_the_unit() {
    let folder = tempfile::tempdir().unwrap();
    let unit = std::fs::read_to_string(root().join("deploy/forrst.service")).unwrap();
    // The program has to exist, and it is not installed on a machine that runs tests.
    let unit = unit.replace("/usr/local/bin/forrst", env!("CARGO_BIN_EXE_forrst"));
    let path = folder.path().join("forrst.service");
    std::fs::write(&path, unit).unwrap();
    let checked = Command::new("systemd-analyze")
        .arg("verify")
        .arg(&path)
        .output()
        .expect("`systemd-analyze` is needed: ./test installs it");
    let said = String::from_utf8_lossy(&checked.stderr);
    let about_us: Vec<&str> = said
        .lines()
        .filter(|line| line.contains("forrst"))
        .collect();
    assert!(checked.status.success() && about_us.is_empty(), "{said}");
}

/// The embedded store tells a restart from a reboot by the boot id, which `ProcSubset=pid` hides.
#[test]
fn the_unit_leaves_the_boot_id_readable() {
    let unit = std::fs::read_to_string(root().join("deploy/forrst.service")).unwrap();
    let hides = |line: &&str| {
        ["ProcSubset=pid", "InaccessiblePaths=/proc"]
            .iter()
            .any(|setting| line.starts_with(setting))
    };
    let hiding: Vec<&str> = unit.lines().filter(hides).collect();
    assert!(hiding.is_empty(), "{hiding:?}");
}
