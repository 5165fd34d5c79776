//! All vectors against the real server, `forrst serve --demo`, over each transport and on each store.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use forrst_conformance::{Options, Transport, run};

#[tokio::test(flavor = "multi_thread")]
async fn over_http() {
    check(Transport::Http, "memory:").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn over_http_on_the_embedded_store() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("embedded:{}", folder.path().display());
    check(Transport::Http, &store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn over_json_rpc() {
    check(Transport::Rpc, "memory:").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn over_a_websocket() {
    check(Transport::Ws, "memory:").await;
}

async fn check(transport: Transport, store: &str) {
    let server = RunningServer::start(store);
    let options = Options {
        transports: vec![transport],
        ..Options::default()
    };
    let report = run(&server.url, &options).await.unwrap();
    println!("{report}");
    let counts = report.counts();
    assert_eq!(counts.failed, 0, "vectors failed: their reports are above");
    assert!(counts.passed > 0, "no vector ran");
}

/// A server on a port of its own, which ends with the test however that ends.
struct RunningServer {
    process: Child,
    url: String,
}

impl RunningServer {
    fn start(store: &str) -> Self {
        let mut process = Command::new(binary())
            .args(["serve", "--demo", "--store", store])
            .args(["--listen", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the server's binary to run");
        let output = process.stdout.take().expect("a pipe");
        let mut lines = BufReader::new(output).lines().map_while(Result::ok);
        let url = lines.find_map(|line| address(&line));
        // A pipe that nobody reads would fill up, and hold up the server.
        std::thread::spawn(move || lines.for_each(drop));
        let server = Self {
            process,
            url: url.unwrap_or_default(),
        };
        assert!(!server.url.is_empty(), "the server's banner has no address");
        server
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The address in a line of the banner, such as `http   http://127.0.0.1:7420/forrst   (…)`.
fn address(line: &str) -> Option<String> {
    line.split_whitespace()
        .filter_map(|word| word.strip_suffix("/forrst"))
        .find(|word| word.starts_with("http://"))
        .map(str::to_owned)
}

/// The `forrst` that belongs to the sources as they are. Cargo is asked each time: a binary that happens to lie there may be
/// older than what is to be tested.
fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        let test = std::env::current_exe().expect("a path");
        // This test is target/<profile>/deps/vectors-<hash>.
        let profile_folder = test.ancestors().nth(2).expect("target/<profile>");
        let target_folder = profile_folder.parent().expect("target");
        let profile = match profile_folder.file_name().and_then(|name| name.to_str()) {
            Some("debug") | None => "dev",
            Some(other) => other,
        };
        // With the features that `./test` builds all with, so that it need not be built twice.
        let status = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()))
            .args(["build", "--quiet", "--workspace", "--all-features"])
            .args(["--bin", "forrst", "--profile", profile, "--target-dir"])
            .arg(target_folder)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status()
            .expect("cargo to run");
        assert!(status.success(), "`forrst` does not build");
        profile_folder.join(format!("forrst{}", std::env::consts::EXE_SUFFIX))
    })
}
