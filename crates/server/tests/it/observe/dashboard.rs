//! The dashboard in a real browser: it shows the current state, updates by itself, and never interprets text as HTML.

use forrst_server::Server;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::observe::browser::Tab;
use crate::observe::scrape::get;
use crate::transports::host::Host;
use crate::wire::{ask, seconds};

const EVIL: &str = "<img src=x onerror=\"document.title='stolen'\">";

async fn send(server: &Server, name: &str, arguments: Value) -> Value {
    let function = format!("urn:cline:forrst:ext:atomic-lock:fn:{name}");
    let request = ask(&function).arguments(arguments).text();
    let answer = server.handle(request.as_bytes()).await;
    serde_json::to_value(&answer).unwrap()
}

async fn take(host: &Host, key: &str, owner: &str, ttl: u64) {
    let arguments = json!({"key": key, "owner": owner, "ttl": seconds(ttl)});
    let answer = send(&host.server, "acquire", arguments).await;
    assert_eq!(answer["errors"], Value::Null, "{answer}");
}

/// Waits in the queue of a lock, in a task.
async fn queue_up(host: &Host, key: &str, owner: &str) -> JoinHandle<Value> {
    let before = host.server.locks().waiting();
    let arguments = json!({"key": key, "owner": owner, "ttl": seconds(600), "block": seconds(300)});
    let server = host.server.clone();
    let waiting = tokio::spawn(async move { send(&server, "acquire", arguments).await });
    host.until_waiting(before + 1).await;
    waiting
}

async fn open(host: &Host) -> Tab {
    let url = format!("http://{}/", host.address);
    Tab::open(url, 1200, 800, "light").await
}

/// A JavaScript expression for the row of a lock.
fn row(key: &str) -> String {
    format!("document.querySelector('tr[data-key={}]')", json!(key))
}

#[tokio::test]
async fn the_dashboard_shows_locks_and_waiters_and_updates_without_a_reload() {
    let host = Host::start().await;
    take(&host, "user:7", "worker-1", 600).await;
    let waiting = queue_up(&host, "user:7", "worker-2").await;
    let mut tab = open(&host).await;
    let row = row("lock:user:7");
    tab.until(&format!(
        "{row}?.querySelector('.owner').textContent === 'worker-1'"
    ))
    .await;
    tab.until(&format!(
        "{row}.querySelector('.queue').innerText.includes('1 waits')"
    ))
    .await;
    tab.until(&format!(
        "/worker-2 +\\d+ s/.test({row}.querySelector('.queue').innerText)"
    ))
    .await;
    tab.until("document.querySelector('#tiles strong').textContent === '1'")
        .await;
    tab.until("/ 2\\.50( |$)/.test(document.querySelector('#tiles .line').getAttribute('d'))")
        .await;
    tab.until("document.querySelector('#node').textContent === 'node-test'")
        .await;
    tab.until("document.querySelector('#state').textContent === 'Live'")
        .await;
    tab.eval("window.neverReloaded = true").await;

    send(
        &host.server,
        "release",
        json!({"key": "lock:user:7", "owner": "worker-1"}),
    )
    .await;
    waiting.await.unwrap();
    tab.until(&format!(
        "{row}?.querySelector('.owner').textContent === 'worker-2'"
    ))
    .await;
    tab.until(&format!("{row}.querySelector('.queue').hidden"))
        .await;
    send(
        &host.server,
        "release",
        json!({"key": "lock:user:7", "owner": "worker-2"}),
    )
    .await;
    tab.until("document.querySelector('#empty').textContent === 'No lock is held.'")
        .await;
    tab.until("!document.querySelector('#empty').hidden").await;
    assert_eq!(tab.eval("window.neverReloaded").await, json!(true));
    tab.expect_no_errors();
}

#[tokio::test]
async fn kinds_and_all_holders_are_shown_and_released_together() {
    let host = Host::start().await;
    let acquire = async |mut arguments: Value| {
        arguments["ttl"] = seconds(600);
        let answer = send(&host.server, "acquire", arguments).await;
        assert_eq!(answer["errors"], Value::Null, "{answer}");
    };
    for owner in ["one", "two"] {
        let note = format!("job of {owner}");
        acquire(json!({"key": "pool", "limit": 3, "owner": owner, "note": note})).await;
    }
    acquire(json!({"keys": ["a", "b"], "mode": "shared", "owner": "set"})).await;
    let mut tab = open(&host).await;
    let (pool, a, b) = (row("lock:pool"), row("lock:a"), row("lock:b"));
    let has = |row: &str, part: &str, text: &str| {
        format!("{row}?.querySelector('{part}').innerText.includes('{text}')")
    };
    tab.until(&has(&pool, ".kind", "2 of 3")).await;
    tab.until(&has(&pool, ".note", "job of one")).await;
    tab.until(&has(&pool, ".others", "two")).await;
    tab.until(&has(&pool, ".others", "job of two")).await;
    tab.until(&has(&a, ".kind", "shared by 1")).await;
    tab.until(&has(&a, ".set", "with b")).await;
    tab.until(&format!("{pool}.querySelector('.set').hidden"))
        .await;
    tab.until(&format!("{a}.querySelector('.others').hidden"))
        .await;

    tab.eval(&format!("{a}.querySelector('button').click()"))
        .await;
    tab.until("document.querySelector('#confirm-keys').textContent.includes('lock:b')")
        .await;
    tab.eval("document.querySelector('#confirm button.danger').click()")
        .await;
    tab.until(&format!("{a} === null && {b} === null")).await;
    tab.eval(&format!("{pool}.querySelector('button').click()"))
        .await;
    tab.until("document.querySelector('#confirm-owner').textContent === 'one, two'")
        .await;
    tab.eval("document.querySelector('#confirm button.danger').click()")
        .await;
    tab.until(&format!("{pool} === null")).await;
    tab.expect_no_errors();
}

#[tokio::test]
async fn reserved_keys_are_counted() {
    let host = Host::start().await;
    take(&host, "b", "holder", 600).await;
    let mut tab = open(&host).await;
    tab.until("document.querySelector('#reserved').hidden")
        .await;
    let arguments = json!({"keys": ["a", "b", "c"], "owner": "set", "ttl": seconds(600), "block": seconds(300)});
    let server = host.server.clone();
    tokio::spawn(async move { send(&server, "acquire", arguments).await });
    host.until_waiting(1).await;
    tab.until("document.querySelector('#reserved').innerText === '2 free keys are reserved for sets that wait'")
        .await;
    tab.expect_no_errors();
}

/// The server lists at most a hundred leases of a key.
#[tokio::test]
async fn leases_that_are_not_shown_are_not_reported_as_released() {
    let host = Host::start().await;
    for number in 0..102 {
        let owner = format!("owner {number}");
        let arguments = json!({"key": "k", "mode": "shared", "owner": owner, "ttl": seconds(600)});
        let answer = send(&host.server, "acquire", arguments).await;
        assert_eq!(answer["errors"], Value::Null, "{answer}");
    }
    let mut tab = open(&host).await;
    let row = row("lock:k");
    tab.until(&format!("{row} !== null")).await;
    tab.eval(&format!("{row}.querySelector('button').click()"))
        .await;
    tab.until(
        "document.querySelector('#confirm').innerText.includes('Of 102 leases only these 100 end')",
    )
    .await;
    tab.eval("document.querySelector('#confirm button.danger').click()")
        .await;
    tab.until("document.querySelector('#said').innerText === 'Released lock:k: 100 leases. 2 more hold it.'")
        .await;
    let status = send(&host.server, "status", json!({"key": "lock:k"})).await;
    assert_eq!(status["result"]["holder_count"], 2);
    tab.expect_no_errors();
}

#[tokio::test]
async fn a_refusal_is_shown_even_if_another_lease_was_released() {
    let host = Host::start().await;
    for owner in ["one", "two"] {
        let arguments = json!({"key": "k", "mode": "shared", "owner": owner, "ttl": seconds(600)});
        send(&host.server, "acquire", arguments).await;
    }
    let mut tab = open(&host).await;
    let row = row("lock:k");
    tab.until(&format!("{row} !== null")).await;
    // The answer of a server whose store fails between the two releases.
    tab.eval(
        "const real = fetch; window.fetch = async (url, options) => {
            const reply = await real(url, options);
            if (!options.body.includes('force-release')) return reply;
            const frames = await reply.json();
            frames[1].result.errors = [{code: 'UNAVAILABLE', message: 'The lock store is unavailable'}];
            return {status: 200, json: async () => frames};
        }",
    )
    .await;
    tab.eval(&format!("{row}.querySelector('button').click()"))
        .await;
    tab.eval("document.querySelector('#confirm button.danger').click()")
        .await;
    tab.until("document.querySelector('#said').innerText === 'Only 1 of 2 leases were released: The lock store is unavailable'")
        .await;
    tab.expect_no_errors();
}

#[tokio::test]
async fn a_search_filters_by_key_and_owner() {
    let host = Host::start().await;
    take(&host, "user:7", "alice", 600).await;
    take(&host, "user:8", "bob", 600).await;
    take(&host, "report", "carol", 600).await;
    let mut tab = open(&host).await;
    let keys =
        "[...document.querySelectorAll('#rows tr')].map((row) => row.dataset.key).sort().join()";
    tab.until(&format!("{keys} === 'lock:report,lock:user:7,lock:user:8'"))
        .await;
    tab.press("/").await;
    tab.write("USER:").await;
    tab.until(&format!("{keys} === 'lock:user:7,lock:user:8'"))
        .await;
    tab.until("document.querySelector('#count').textContent === '2 of 3'")
        .await;
    tab.eval("document.querySelector('#search').select()").await;
    tab.write("carol").await;
    tab.until(&format!("{keys} === 'lock:report'")).await;
    tab.eval("document.querySelector('#search').select()").await;
    tab.write("nobody").await;
    tab.until("document.querySelector('#empty').textContent === 'No held lock matches.'")
        .await;
    tab.expect_no_errors();
}

#[tokio::test]
async fn a_lock_is_released_by_force_only_after_a_confirmation() {
    let host = Host::start().await;
    take(&host, "user:7", "worker-1", 600).await;
    let waiting = queue_up(&host, "user:7", "worker-2").await;
    let mut tab = open(&host).await;
    let row = row("lock:user:7");
    tab.until(&format!("{row} !== null")).await;
    let click = format!("{row}.querySelector('button').click()");
    let dialog = "document.querySelector('#confirm')";

    tab.eval(&click).await;
    tab.until(&format!(
        "{dialog}.open && {dialog}.innerText.includes('worker-1')"
    ))
    .await;
    // The focus is on the button that cancels: a bare Enter is not a confirmation.
    tab.press("Enter").await;
    tab.until(&format!("!{dialog}.open")).await;
    tab.eval(&click).await;
    tab.press("Escape").await;
    tab.until(&format!("!{dialog}.open")).await;
    assert!(!waiting.is_finished());

    tab.eval(&click).await;
    tab.eval("document.querySelector('#confirm button[value=release]').click()")
        .await;
    tab.until(&format!(
        "{row}?.querySelector('.owner').textContent === 'worker-2'"
    ))
    .await;
    tab.until("document.querySelector('#said').textContent === 'Released lock:user:7'")
        .await;
    waiting.await.unwrap();
    tab.expect_no_errors();
}

#[tokio::test]
async fn a_click_never_releases_a_successor_of_the_lease_that_was_shown() {
    let host = Host::start().await;
    take(&host, "user:7", "worker-1", 600).await;
    let mut tab = open(&host).await;
    let row = row("lock:user:7");
    tab.until(&format!("{row} !== null")).await;
    tab.eval(&format!("{row}.querySelector('button').click()"))
        .await;
    tab.until("document.querySelector('#confirm').open").await;

    let key = json!({"key": "lock:user:7", "owner": "worker-1"});
    let released = send(&host.server, "release", key).await;
    assert_eq!(released["result"]["released"], true, "{released}");
    take(&host, "user:7", "worker-2", 600).await;
    tab.eval("document.querySelector('#confirm button[value=release]').click()")
        .await;
    tab.until("document.querySelector('#said').textContent.includes('another lease holds it now')")
        .await;
    let key = json!({"key": "lock:user:7"});
    let status = send(&host.server, "status", key).await;
    assert_eq!(status["result"]["owner"], "worker-2", "{status}");
    tab.expect_no_errors();
}

#[tokio::test]
async fn a_key_that_looks_like_html_is_shown_as_text() {
    let host = Host::start().await;
    take(&host, EVIL, EVIL, 600).await;
    let _waiting = queue_up(&host, EVIL, EVIL).await;
    let mut tab = open(&host).await;
    tab.until(&format!(
        "document.querySelector('#rows .key')?.textContent === {}",
        json!(EVIL)
    ))
    .await;
    tab.until(&format!(
        "document.querySelector('#rows .queue code')?.textContent === {}",
        json!(EVIL)
    ))
    .await;
    tab.eval("document.querySelector('#rows button').click()")
        .await;
    tab.until(&format!(
        "document.querySelector('#confirm-key').textContent === {}",
        json!(format!("lock:{EVIL}"))
    ))
    .await;
    assert_eq!(
        tab.eval("document.querySelectorAll('main img, dialog img').length")
            .await,
        json!(0)
    );
    assert_eq!(tab.eval("document.title").await, json!("Locks · forrst"));
    tab.expect_no_errors();
}

#[tokio::test]
async fn an_api_key_is_kept_in_the_tab_and_sent_with_every_call() {
    let host = Host::start().await;
    let mut tab = open(&host).await;
    tab.until("document.querySelector('#state').textContent === 'Live'")
        .await;
    tab.eval("window.sent = []; const real = fetch; window.fetch = (url, options) => { sent.push(options.headers.authorization); return real(url, options); }").await;
    tab.eval("document.querySelector('#key-button').click()")
        .await;
    tab.write("fk_secret").await;
    tab.press("Enter").await;
    tab.until("document.querySelector('#key-button').textContent === 'API key set'")
        .await;
    tab.until("sent.includes('Bearer fk_secret')").await;
    let kept = tab.eval("[localStorage.length, document.cookie, sessionStorage.getItem('forrst-key'), location.href.includes('fk_')]").await;
    assert_eq!(kept, json!([0, "", "fk_secret", false]));
    assert_eq!(
        tab.eval("document.querySelector('#key-input').value").await,
        json!("")
    );
    tab.expect_no_errors();
}

#[tokio::test]
async fn the_dashboard_says_when_the_server_does_not_answer() {
    let host = Host::start().await;
    take(&host, "user:7", "worker-1", 600).await;
    let mut tab = open(&host).await;
    tab.until("document.querySelector('#rows tr') !== null")
        .await;
    host.server
        .shut_down(std::time::Duration::from_millis(1))
        .await;
    drop(host);
    tab.until("document.querySelector('#state').textContent === 'Not live'")
        .await;
    tab.until(
        "document.querySelector('#notice').textContent.startsWith('The server does not answer')",
    )
    .await;
}

#[tokio::test]
async fn the_dashboard_has_a_dark_mode_and_fits_a_phone() {
    let host = Host::start().await;
    take(&host, &"a-rather-long-key:".repeat(12), "worker-1", 600).await;
    let url = format!("http://{}/", host.address);
    let mut dark = Tab::open(url, 360, 740, "dark").await;
    dark.until("document.querySelector('#rows tr') !== null")
        .await;
    let ground = dark
        .eval("getComputedStyle(document.body).backgroundColor")
        .await;
    assert_eq!(ground, json!("rgb(18, 21, 19)"));
    let overflow = dark
        .eval("document.documentElement.scrollWidth - innerWidth")
        .await;
    assert_eq!(overflow, json!(0), "the dashboard is wider than a phone");
    dark.expect_no_errors();
}

#[tokio::test]
async fn the_dashboard_is_small_and_its_policy_is_strict() {
    let host = Host::start().await;
    let mut size = 0;
    for path in ["/", "/page.css", "/page.js", "/page.svg"] {
        let (head, body) = get(host.address, path).await;
        assert!(head.starts_with("http/1.1 200"), "{path}: {head}");
        assert!(
            head.contains("content-security-policy: default-src 'none'; script-src 'self';"),
            "{head}"
        );
        assert!(!head.contains("unsafe"), "{head}");
        assert!(
            !body.contains("http://") || path == "/page.svg",
            "{path} names another origin"
        );
        assert!(!body.contains("https://"), "{path} names another origin");
        size += body.len();
    }
    assert!(size < 50_000, "{size} bytes");
}

/// Makes `docs/page-light.png` and `docs/page-dark.png`: `cargo test -p forrst-server --test it screenshots -- --ignored`.
#[tokio::test]
#[ignore = "writes the screenshots of the documentation, which differ in every run"]
async fn screenshots() {
    crate::observe::screenshots::take().await;
}
