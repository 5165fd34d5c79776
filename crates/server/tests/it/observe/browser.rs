//! Headless Chromium, driven over the `DevTools` protocol.

use std::fmt::Display;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

/// Long, because the machine may be building something at the same time.
const PATIENCE: Duration = Duration::from_secs(60);

/// A tab in its own browser. Both are closed on drop.
pub(crate) struct Tab {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    session: Option<String>,
    calls: u64,
    /// Errors, exceptions, and violations of the content security policy.
    errors: Vec<String>,
    _browser: Child,
    _profile: TempDir,
}

impl Tab {
    /// Opens a URL in a window of this size, with a light or a dark color scheme.
    pub(crate) async fn open(url: impl Display, width: u32, height: u32, scheme: &str) -> Self {
        let profile = tempfile::tempdir().unwrap();
        let browser = Command::new("chromium")
            .args([
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--no-first-run",
            ])
            .args([
                "--disable-dev-shm-usage",
                "--hide-scrollbars",
                "--remote-debugging-port=0",
            ])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("`chromium` is needed: ./test installs it");
        let address = devtools(profile.path()).await;
        let (socket, _) = connect_async(address).await.unwrap();
        let mut tab = Self {
            socket,
            session: None,
            calls: 0,
            errors: Vec::new(),
            _browser: browser,
            _profile: profile,
        };
        let target = tab
            .call("Target.createTarget", json!({"url": "about:blank"}))
            .await;
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = tab.call("Target.attachToTarget", attach).await;
        tab.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Runtime", "Log", "Page", "Network"] {
            tab.call(&format!("{domain}.enable"), json!({})).await;
        }
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600});
        tab.call("Emulation.setDeviceMetricsOverride", size).await;
        let scheme = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        tab.call("Emulation.setEmulatedMedia", scheme).await;
        tab.call("Page.navigate", json!({"url": url.to_string()}))
            .await;
        tab.until("location.protocol === 'http:' && document.readyState === 'complete'")
            .await;
        tab
    }

    /// The value of a JavaScript expression.
    pub(crate) async fn eval(&mut self, expression: &str) -> Value {
        let arguments =
            json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let answer = self.call("Runtime.evaluate", arguments).await;
        let failed = answer.get("exceptionDetails");
        assert!(failed.is_none(), "{expression}: {answer:#}");
        answer["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    #[track_caller]
    pub(crate) fn until<'a>(
        &'a mut self,
        expression: &'a str,
    ) -> impl Future<Output = ()> + use<'a> {
        let place = std::panic::Location::caller();
        async move {
            let give_up = Instant::now() + PATIENCE;
            while self.eval(expression).await != json!(true) {
                if Instant::now() > give_up {
                    let text = self.eval("document.body.innerText").await;
                    panic!(
                        "{place}: never came true: {expression}\nin {text:#}\n{:?}",
                        self.errors
                    );
                }
                sleep(Duration::from_millis(50)).await;
            }
        }
    }

    /// Types into the focused element.
    pub(crate) async fn write(&mut self, text: &str) {
        self.call("Input.insertText", json!({"text": text})).await;
    }

    /// Presses a key, such as `Enter` or `/`.
    pub(crate) async fn press(&mut self, key: &str) {
        let code = match key {
            "Enter" => 13,
            "Escape" => 27,
            "Tab" => 9,
            _ => 0,
        };
        let text = match key {
            "Enter" => "\r",
            key if key.len() == 1 => key,
            _ => "",
        };
        let down =
            json!({"type": "keyDown", "key": key, "text": text, "windowsVirtualKeyCode": code});
        self.call("Input.dispatchKeyEvent", down).await;
        let up = json!({"type": "keyUp", "key": key, "windowsVirtualKeyCode": code});
        self.call("Input.dispatchKeyEvent", up).await;
    }

    /// A screenshot, as a PNG in base64.
    pub(crate) async fn screenshot(&mut self) -> String {
        let shot = self
            .call("Page.captureScreenshot", json!({"format": "png"}))
            .await;
        shot["data"].as_str().unwrap().to_owned()
    }

    #[track_caller]
    pub(crate) fn expect_no_errors(&self) {
        assert!(self.errors.is_empty(), "{:#?}", self.errors);
    }

    async fn call(&mut self, method: &str, params: Value) -> Value {
        self.calls += 1;
        let id = self.calls;
        let mut frame = json!({"id": id, "method": method, "params": params});
        if let Some(session) = &self.session {
            frame["sessionId"] = session.as_str().into();
        }
        let frame = Message::text(frame.to_string());
        self.socket.send(frame).await.unwrap();
        loop {
            let next = timeout(PATIENCE, self.socket.next()).await;
            let next = next.unwrap_or_else(|_| panic!("no answer to {method}"));
            let text = next
                .expect("the browser is gone")
                .unwrap()
                .into_text()
                .unwrap();
            let frame: Value = serde_json::from_str(&text).unwrap();
            if frame["id"] == id {
                assert!(frame.get("error").is_none(), "{method}: {frame:#}");
                return frame["result"].clone();
            }
            self.note(&frame);
        }
    }

    fn note(&mut self, event: &Value) {
        let params = &event["params"];
        let is_error = match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => true,
            Some("Runtime.consoleAPICalled") => params["type"] == "error",
            Some("Log.entryAdded") => params["entry"]["level"] == "error",
            _ => false,
        };
        if is_error {
            self.errors.push(params.to_string());
        }
    }
}

/// The WebSocket URL of the browser, which it writes to a file when it is ready.
async fn devtools(profile: &Path) -> String {
    let give_up = Instant::now() + PATIENCE;
    loop {
        let written = std::fs::read_to_string(profile.join("DevToolsActivePort"));
        let written = written.unwrap_or_default();
        if let Some((port, path)) = written.trim().split_once('\n') {
            return format!("ws://127.0.0.1:{port}{path}");
        }
        assert!(Instant::now() < give_up, "chromium does not start");
        sleep(Duration::from_millis(50)).await;
    }
}
