//! `forrst store check` and `migrate`, `--strict`, and a Postgres that cannot be used.

use forrst_testkit::{Lock, PostgresOptions, PostgresServer, Serve, SharedPostgres, list, until};

use crate::redis::nodes::{FORRST, HOUR, take};

fn forrst(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = std::process::Command::new(FORRST)
        .args(arguments)
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

fn serve(url: &str, arguments: &[&str]) -> Serve {
    Serve::new(FORRST, &[&["--store", url], arguments].concat())
}

#[track_caller]
fn refusal(url: &str, arguments: &[&str]) -> String {
    let (code, output, errors) = serve(url, arguments).run();
    assert_eq!(code, Some(1), "{output}{errors}");
    errors
}

#[test]
fn a_fit_server_passes_the_check_which_changes_nothing() {
    let postgres = PostgresServer::start();
    let (code, output, errors) = forrst(&["store", "check", "--store", &postgres.url()]);
    assert_eq!(code, Some(0), "{output}{errors}");
    assert!(output.contains("is fit for locks"), "{output}");
    assert!(output.contains("`forrst store migrate`"), "{output}");
    let tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'forrst'";
    assert_eq!(postgres.sql(tables), "0");
    let json = ["store", "check", "--json", "--store", &postgres.url()];
    let (_, output, _) = forrst(&json);
    let found: serde_json::Value = serde_json::from_str(&output).unwrap();
    assert_eq!(found["fit"], true, "{output}");
    serve(&postgres.url(), &["--strict"]).node();
}

#[test]
fn unsafe_settings_are_named_and_refused_with_strict() {
    let settings = ["fsync=off", "synchronous_commit=off"];
    let postgres = PostgresOptions::default().settings(&settings).start();
    let url = postgres.url();
    let (code, output, _) = forrst(&["store", "check", "--store", &url]);
    assert_eq!(code, Some(1), "{output}");
    for word in ["fsync is off", "synchronous_commit is off"] {
        assert!(output.contains(word), "{output}");
    }
    let errors = refusal(&url, &["--strict"]);
    assert!(errors.contains("fsync is off"), "{errors}");
    let node = serve(&url, &[]).node();
    until("it warns", || {
        node.errors().contains("UNSAFE: fsync is off")
            && node.errors().contains("UNSAFE: synchronous_commit is off")
    });
    take(&node, &Lock::global("k"), "a", HOUR);
}

/// Found while it runs: what is held can still be released.
#[test]
fn with_strict_nothing_is_granted_while_the_settings_are_unsafe() {
    let postgres = PostgresServer::start();
    let node = serve(&postgres.url(), &["--strict", "--demo"]).node();
    let lock = Lock::global("k");
    let held = take(&node, &lock, "a", HOUR);
    postgres.sql("ALTER SYSTEM SET fsync = off");
    postgres.sql("SELECT pg_reload_conf()");
    let other = Lock::global("other");
    until("nothing is granted", || {
        let answer = node.ask(&other.locked_call("b", HOUR, true));
        answer.code() == Some("UNAVAILABLE")
    });
    crate::redis::nodes::give_back(&node, &lock, &held);
    postgres.sql("ALTER SYSTEM RESET fsync");
    postgres.sql("SELECT pg_reload_conf()");
    crate::redis::nodes::until_serving(&node);
}

#[test]
fn a_standby_is_refused() {
    let postgres = PostgresServer::start();
    let standby = postgres.standby();
    let errors = refusal(&standby.url(), &[]);
    assert!(errors.contains("does not allow writes"), "{errors}");
    let (code, ..) = forrst(&["store", "check", "--store", &standby.url()]);
    assert_eq!(code, Some(69));
}

#[test]
fn a_clock_that_was_set_back_is_reported() {
    let postgres = PostgresServer::start();
    serve(&postgres.url(), &[]).node();
    postgres.sql("UPDATE forrst.nodes SET seen = seen + 60000");
    let errors = refusal(&postgres.url(), &["--strict"]);
    assert!(errors.contains("was set back"), "{errors}");
}

#[test]
fn a_role_without_ddl_rights_uses_tables_that_another_role_has_created() {
    let postgres = PostgresServer::start();
    postgres.sql("CREATE ROLE server LOGIN; REVOKE CREATE ON DATABASE postgres FROM PUBLIC");
    let url = postgres.url().replace("forrst@", "server@");
    let errors = refusal(&url, &[]);
    assert!(errors.contains("forrst store migrate"), "{errors}");
    for _ in 0..2 {
        let (code, output, errors) = forrst(&["store", "migrate", "--store", &postgres.url()]);
        assert_eq!(code, Some(0), "{output}{errors}");
    }
    // The rights in docs/postgres.md.
    postgres.sql(
        "GRANT USAGE ON SCHEMA forrst TO server;
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA forrst TO server",
    );
    let node = serve(&url, &[]).node();
    let lock = Lock::global("k");
    let held = take(&node, &lock, "a", HOUR);
    let row = postgres.sql("SELECT name, owner, fence, kind, waiters FROM forrst.held");
    assert_eq!(row, format!("lock:k|a|{:015}|exclusive|0", held.fence));
}

#[test]
fn other_stores_have_no_tables_and_can_be_checked() {
    let (code, _, errors) = forrst(&["store", "migrate", "--store", "memory:"]);
    assert_eq!(code, Some(1), "{errors}");
    let (code, output, _) = forrst(&["store", "check", "--store", "memory:"]);
    assert_eq!(code, Some(1), "{output}");
    let folder = tempfile::tempdir().unwrap();
    let embedded = format!("embedded:{}", folder.path().display());
    let (code, output, errors) = forrst(&["store", "check", "--store", &embedded]);
    assert_eq!(code, Some(0), "{output}{errors}");
    let redis = forrst_testkit::RedisOptions::default().forgetful().start();
    let (code, output, _) = forrst(&["store", "check", "--store", &redis.url()]);
    assert_eq!(code, Some(1), "{output}");
    assert!(output.contains("no persistence"), "{output}");
}

#[test]
fn tls_is_used_and_a_certificate_that_is_not_trusted_is_refused() {
    let postgres = PostgresOptions::default().tls().start();
    let url = |mode: &str| {
        format!(
            "postgres://forrst@localhost:{}/postgres?sslmode={mode}",
            postgres.port()
        )
    };
    let ca = postgres.ca().to_str().unwrap();
    let node = serve(&url("verify-full"), &["--postgres-ca", ca]).node();
    take(&node, &Lock::global("k"), "a", HOUR);
    let encrypted = "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
         WHERE application_name = 'forrst'";
    assert_eq!(postgres.sql(encrypted), "t");
    let errors = refusal(&url("require"), &[]);
    assert!(errors.contains("certificate"), "{errors}");
    serve(&url("prefer"), &[]).node();
    serve(&url("disable"), &[]).node();
}

#[test]
fn two_schemas_do_not_see_each_other() {
    let postgres = SharedPostgres::join();
    let other = format!("{}_b", postgres.schema());
    let node = |schema: &str| serve(&postgres.url(), &["--postgres-schema", schema]).node();
    let (one, two) = (node(postgres.schema()), node(&other));
    let lock = Lock::global("k");
    take(&one, &lock, "a", HOUR);
    take(&two, &lock, "b", HOUR);
    assert_eq!(one.ask(&list()).listed(), ["lock:k"]);
    let errors = refusal(&postgres.url(), &["--postgres-schema", "No;Schema"]);
    assert!(errors.contains("lower-case letters"), "{errors}");
}

#[test]
fn a_server_that_is_started_before_its_postgres_becomes_ready() {
    let mut postgres = PostgresServer::start();
    postgres.kill();
    let running = serve(&postgres.url(), &["--store-wait", "1h"]).spawn();
    until("it waits for the store", || {
        assert!(!running.has_ended(), "it ended:\n{}", running.errors());
        running.errors().contains("waiting for the store")
    });
    postgres.restart();
    until("the banner is there", || {
        assert!(!running.has_ended(), "it ended:\n{}", running.errors());
        running.output().contains("curl")
    });
}
