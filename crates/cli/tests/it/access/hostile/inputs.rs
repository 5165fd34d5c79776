//! The list of hostile inputs: one line for each.

/// Which connection it is sent on.
#[derive(Debug, Clone, Copy)]
pub(super) enum Through {
    Http,
    /// After the upgrade.
    WebSocket,
    Unix,
}

/// An input that no correct client sends.
pub(super) struct Hostile {
    pub(super) name: &'static str,
    pub(super) through: Through,
    pub(super) bytes: Vec<u8>,
    /// Whether a server without keys answers it with 200: errors of a JSON-RPC frame are in the body.
    pub(super) may_be_200: bool,
}

fn hostile(name: &'static str, through: Through, bytes: impl Into<Vec<u8>>) -> Hostile {
    let bytes = bytes.into();
    Hostile {
        name,
        through,
        bytes,
        may_be_200: false,
    }
}

/// Raw bytes.
fn raw(name: &'static str, bytes: impl Into<Vec<u8>>) -> Hostile {
    hostile(name, Through::Http, bytes)
}

/// A POST with one more header line, which may be anything.
fn header(name: &'static str, line: impl AsRef<[u8]>) -> Hostile {
    let start = b"POST /forrst HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n";
    raw(name, [start, line.as_ref(), b"\r\n\r\n"].concat())
}

/// A POST of this body, with its correct length.
fn body(name: &'static str, body: impl AsRef<[u8]>) -> Hostile {
    post(name, "/forrst", body.as_ref())
}

/// The same to `/rpc`.
fn frame(name: &'static str, body: impl AsRef<[u8]>) -> Hostile {
    let mut hostile = post(name, "/rpc", body.as_ref());
    hostile.may_be_200 = true;
    hostile
}

fn post(name: &'static str, path: &str, body: &[u8]) -> Hostile {
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    raw(name, [head.as_bytes(), body].concat())
}

/// A POST with a body in chunks.
fn chunked(name: &'static str, chunks: impl AsRef<[u8]>) -> Hostile {
    let head = b"POST /forrst HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    raw(name, [head, chunks.as_ref()].concat())
}

/// A request for a WebSocket with these headers.
fn upgrade(name: &'static str, headers: &str) -> Hostile {
    raw(
        name,
        format!("GET /rpc HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n\r\n"),
    )
}

fn socket(name: &'static str, bytes: impl Into<Vec<u8>>) -> Hostile {
    hostile(name, Through::WebSocket, bytes)
}

fn unix(name: &'static str, bytes: impl Into<Vec<u8>>) -> Hostile {
    hostile(name, Through::Unix, bytes)
}

/// A frame of the unix socket, with its correct length.
fn unix_frame(body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&length, body].concat()
}

/// A WebSocket frame as a client masks it, with a mask of zeros.
fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![first];
    match payload.len() {
        length @ 0..=125 => frame.push(0x80 | u8::try_from(length).unwrap()),
        length @ 126..=65_535 => {
            frame.push(0x80 | 126);
            frame.extend(u16::try_from(length).unwrap().to_be_bytes());
        }
        length => {
            frame.push(0x80 | 127);
            frame.extend((length as u64).to_be_bytes());
        }
    }
    frame.extend([0; 4]);
    frame.extend(payload);
    frame
}

const CALL: &str =
    r#"{"protocol":{"name":"forrst","version":"0.1.0"},"id":"x","call":{"function":"demo.echo"}}"#;

/// A request whose arguments are this text.
fn arguments(text: &str) -> String {
    format!(
        r#"{{"protocol":{{"name":"forrst","version":"0.1.0"}},"id":"x","call":{{"function":"demo.sleep","arguments":{text}}}}}"#
    )
}

fn deep(open: &str, close: &str, times: usize) -> String {
    format!("{}1{}", open.repeat(times), close.repeat(times))
}

pub(super) fn inputs() -> Vec<Hostile> {
    let mut all = Vec::new();
    all.extend(request_lines());
    all.extend(heads());
    all.extend(lengths());
    all.extend(chunks());
    all.extend(bodies());
    all.extend(frames());
    all.extend(upgrades());
    all.extend(sockets());
    all.extend(unix_frames());
    all
}

fn request_lines() -> Vec<Hostile> {
    let line = |name, line: &str| {
        raw(
            name,
            format!("{line}\r\nhost: localhost\r\nconnection: close\r\n\r\n"),
        )
    };
    vec![
        raw("nothing at all", ""),
        raw("a line break", "\r\n"),
        raw("many line breaks", "\r\n".repeat(10_000)),
        raw("zeros", vec![0; 4096]),
        raw(
            "all bytes",
            (0..=255).cycle().take(8192).collect::<Vec<u8>>(),
        ),
        raw(
            "a tls greeting",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
        ),
        raw("ssh", "SSH-2.0-OpenSSH_9.9\r\n"),
        raw("smtp", "EHLO evil.example\r\n"),
        raw("redis", "*1\r\n$4\r\nPING\r\n"),
        raw("half a request line", "POST /forr"),
        raw("a request line without an end", "P".repeat(1_000_000)),
        line("no version", "GET /health"),
        line("version 0.9", "GET /health HTTP/0.9"),
        line("version 3", "GET /health HTTP/3.0"),
        line("no path", "GET  HTTP/1.1"),
        line("a path with dots", "GET /../../etc/passwd HTTP/1.1"),
        line(
            "a path with encoded dots",
            "GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1",
        ),
        line("a path with a zero", "GET /health%00 HTTP/1.1"),
        line("a path that is not ASCII", "GET /gesundheit\u{e4} HTTP/1.1"),
        line(
            "a long path",
            &format!("GET /{} HTTP/1.1", "a".repeat(60_000)),
        ),
        line(
            "a longer path",
            &format!("GET /{} HTTP/1.1", "a".repeat(1_000_000)),
        ),
        line("an asterisk", "OPTIONS * HTTP/1.1"),
        line("connect", "CONNECT evil.example:443 HTTP/1.1"),
        line("trace", "TRACE /forrst HTTP/1.1"),
        line("an unknown method", "FORRST /forrst HTTP/1.1"),
        line("a method in small letters", "post /forrst HTTP/1.1"),
        line(
            "a long method",
            &format!("{} /forrst HTTP/1.1", "M".repeat(10_000)),
        ),
        line("a request for a proxy", "GET http://evil.example/ HTTP/1.1"),
        line("tabs between the words", "GET\t/forrst\tHTTP/1.1"),
        line("delete", "DELETE /forrst HTTP/1.1"),
        line("patch of a probe", "PATCH /health HTTP/1.1"),
    ]
}

fn heads() -> Vec<Hostile> {
    let many: String = (0..5_000)
        .map(|number| format!("x-{number}: y\r\n"))
        .collect();
    vec![
        header("a header without a colon", "nonsense"),
        header("a header without a name", ": value"),
        header("a space before the colon", "x-a : b"),
        header("a folded header", "x-a: b\r\n c"),
        header("a header with a zero", b"x-a: b\0c"),
        header("a header with a bare carriage return", "x-a: b\rc"),
        header("a header of broken utf-8", b"x-a: \xff\xfe"),
        header("a header of 60 kB", format!("x-a: {}", "a".repeat(60_000))),
        header(
            "a header of 2 MB",
            format!("x-a: {}", "a".repeat(2_000_000)),
        ),
        header("five thousand headers", many.trim_end()),
        header("an empty host", "host:"),
        header("two hosts", "host: evil.example"),
        header(
            "a key of 50 kB",
            format!("authorization: Bearer {}", "k".repeat(50_000)),
        ),
        header("a key of broken utf-8", b"x-api-key: \xff\xfe\xfd"),
        header("an empty key", "authorization: Bearer "),
        header("a hundred keys", vec!["x-api-key: a"; 90].join("\r\n")),
        header("basic authentication", "authorization: Basic YTpi"),
        header("a trace of nonsense", "traceparent: 00-zz-zz-zz"),
        header(
            "a trace of 10 kB",
            format!("traceparent: 00-{}", "a".repeat(10_000)),
        ),
        header("an unknown expectation", "expect: the-unexpected"),
        header("a cookie", format!("cookie: {}", "a=b; ".repeat(1_000))),
        raw("half a head", "POST /forrst HTTP/1.1\r\nhost: local"),
        raw(
            "a head without an end",
            "POST /forrst HTTP/1.1\r\nhost: localhost\r\nx-a: b\r\n",
        ),
        raw(
            "line feeds alone",
            "POST /forrst HTTP/1.1\nhost: localhost\n\n",
        ),
        raw(
            "no host",
            "GET /nowhere HTTP/1.1\r\nconnection: close\r\n\r\n",
        ),
        raw(
            "another host",
            "GET /health HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n",
        ),
        raw("http/2 that breaks off", "PRI * HTTP/2.0\r\n\r\nSM"),
        raw(
            "http/2 and nonsense",
            [
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
                vec![0xff; 4096],
            ]
            .concat(),
        ),
        raw(
            "http/2 with a frame of 16 MB",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\x00\x00\x00\x00\x00\x01".to_vec(),
        ),
        raw(
            "http/2 and many settings",
            [
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
                b"\0\0\0\x04\0\0\0\0\0".repeat(5_000),
            ]
            .concat(),
        ),
        raw(
            "http/2 and many pings",
            [
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec(),
                b"\0\0\x08\x06\0\0\0\0\0\0\0\0\0\0\0\0\0".repeat(5_000),
            ]
            .concat(),
        ),
        raw(
            "http/2 with a header bomb",
            [
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\x40\0\x01\x04\0\0\0\x01"
                    .to_vec(),
                vec![0x82; 16_384],
            ]
            .concat(),
        ),
    ]
}

fn lengths() -> Vec<Hostile> {
    let length = |name, length: &str, body: &str| {
        raw(
            name,
            format!(
                "POST /forrst HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n{length}\r\n\r\n{body}"
            ),
        )
    };
    let smuggled = format!("{CALL}GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n");
    vec![
        length("a negative length", "content-length: -1", CALL),
        length(
            "a length that is not a number",
            "content-length: many",
            CALL,
        ),
        length("a length with a sign", "content-length: +5", CALL),
        length("a length in hexadecimal", "content-length: 0x10", CALL),
        length(
            "a length of all the bytes there are",
            "content-length: 18446744073709551615",
            CALL,
        ),
        length(
            "a length beyond all numbers",
            "content-length: 99999999999999999999999",
            CALL,
        ),
        length("a length of a gigabyte", "content-length: 1073741824", CALL),
        length(
            "a length that is larger than the body",
            "content-length: 1000",
            CALL,
        ),
        length(
            "two lengths",
            "content-length: 5\r\ncontent-length: 6",
            CALL,
        ),
        length("two lengths in one", "content-length: 5, 6", CALL),
        length(
            "a length and chunks",
            "content-length: 5\r\ntransfer-encoding: chunked",
            &format!("0\r\n\r\n{CALL}"),
        ),
        length(
            "a length that is smaller than the body",
            "content-length: 10",
            &smuggled,
        ),
        length("no length", "x-a: b", CALL),
        length("an empty body", "content-length: 0", ""),
        length("an unknown encoding", "transfer-encoding: gzip", CALL),
        length(
            "chunks that are not last",
            "transfer-encoding: chunked, gzip",
            CALL,
        ),
        length(
            "an encoding that only contains the word chunked",
            "transfer-encoding: xchunked",
            CALL,
        ),
        length(
            "a body in gzip",
            "content-encoding: gzip\r\ncontent-length: 4",
            "\u{1f}\u{8b}",
        ),
    ]
}

fn chunks() -> Vec<Hostile> {
    vec![
        chunked(
            "a chunk size that is not a number",
            "zz\r\nabc\r\n0\r\n\r\n",
        ),
        chunked("a negative chunk", "-1\r\nabc\r\n0\r\n\r\n"),
        chunked(
            "a chunk of all the bytes there are",
            "ffffffffffffffff\r\nabc",
        ),
        chunked("a chunk beyond all numbers", "fffffffffffffffff0\r\nabc"),
        chunked(
            "a chunk that is longer than its size",
            "1\r\nabc\r\n0\r\n\r\n",
        ),
        chunked("chunks that break off", "5\r\nab"),
        chunked(
            "a chunk extension of 100 kB",
            format!("1;{}\r\n{{\r\n0\r\n\r\n", "a".repeat(100_000)),
        ),
        chunked(
            "many small chunks",
            format!("{}0\r\n\r\n", "1\r\n \r\n".repeat(20_000)),
        ),
        chunked(
            "trailers of 1 MB",
            format!("0\r\nx-a: {}\r\n\r\n", "a".repeat(1_000_000)),
        ),
        chunked(
            "many trailers",
            format!("0\r\n{}\r\n", "x-a: b\r\n".repeat(5_000)),
        ),
        chunked(
            "two megabytes in chunks",
            format!("200000\r\n{}\r\n0\r\n\r\n", " ".repeat(0x20_0000)),
        ),
    ]
}

fn bodies() -> Vec<Hostile> {
    let keys: String = (0..50_000)
        .map(|number| format!("\"k{number}\":1,"))
        .collect();
    vec![
        body("broken utf-8", b"{\"id\":\"\xff\xfe\"}"),
        body("overlong utf-8", b"{\"id\":\"\xc0\xaf\"}"),
        body("half a surrogate", r#"{"id":"\ud800"}"#),
        body(
            "a byte order mark",
            [b"\xef\xbb\xbf", CALL.as_bytes()].concat(),
        ),
        body(
            "utf-16",
            CALL.encode_utf16()
                .flat_map(u16::to_le_bytes)
                .collect::<Vec<u8>>(),
        ),
        body("a zero in a name", "{\"a\0b\":1}"),
        body("a null", "null"),
        body("a deep array", deep("[", "]", 100_000)),
        body("deep arrays that never end", "[".repeat(1_000_000)),
        body("deep objects that never end", "{\"a\":".repeat(200_000)),
        body("deep arguments", arguments(&deep("{\"a\":", "}", 70))),
        body("very deep arguments", arguments(&deep("[", "]", 500_000))),
        body("a duplicate name", r#"{"id":"a","id":"b"}"#),
        body(
            "a duplicate name with an escape",
            r#"{"id":"a","\u0069d":"b"}"#,
        ),
        body("a duplicate argument", arguments(r#"{"ms":1,"ms":2}"#)),
        body("fifty thousand names", format!("{{{keys}\"k\":1}}")),
        body(
            "an enormous number",
            arguments(&format!("{{\"ms\":{}}}", "9".repeat(500_000))),
        ),
        body("an enormous exponent", arguments("{\"ms\":1e999999999}")),
        body("a negative number", arguments("{\"ms\":-1}")),
        body("an enormous text", format!("\"{}\"", "a".repeat(1_000_000))),
        body("a body that is too large", " ".repeat(2_000_000)),
        body(
            "an id of 100 kB",
            CALL.replace("\"x\"", &format!("\"{}\"", "i".repeat(100_000))),
        ),
        body(
            "a function of 100 kB",
            CALL.replace("demo.echo", &"f".repeat(100_000)),
        ),
        body(
            "a function with line breaks",
            CALL.replace("demo.echo", "demo.echo\\r\\nx: y"),
        ),
        body(
            "ten thousand extensions",
            CALL.replacen(
                '{',
                &format!(
                    "{{\"extensions\":[{}{{}}],",
                    "{\"urn\":\"urn:a\"},".repeat(10_000)
                ),
                1,
            ),
        ),
        body("a script", "<script>alert(1)</script>"),
        body("a form", "id=x&call=y"),
        body("two requests", format!("{CALL}{CALL}")),
        body("escapes only", format!("\"{}\"", "\\u0000".repeat(100_000))),
        raw(
            "many at once",
            b"GET /nowhere HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(500),
        ),
    ]
}

fn frames() -> Vec<Hostile> {
    vec![
        frame(
            "a batch of ten thousand",
            format!("[{}1]", "1,".repeat(10_000)),
        ),
        frame("a batch in a batch", "[[[[]]]]"),
        frame("an empty batch", "[]"),
        frame("a deep frame", deep("[", "]", 100_000)),
        frame(
            "a frame without a version",
            r#"{"id":1,"method":"forrst.call"}"#,
        ),
        frame(
            "a method that is a number",
            r#"{"jsonrpc":"2.0","id":1,"method":5}"#,
        ),
        frame(
            "an id that is a tree",
            r#"{"jsonrpc":"2.0","id":{"a":[1]},"method":"rpc.discover"}"#,
        ),
        frame(
            "a method of 500 kB",
            format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"{}"}}"#,
                "m".repeat(500_000)
            ),
        ),
        frame(
            "params without an end",
            r#"{"jsonrpc":"2.0","id":1,"method":"forrst.call","params":["#,
        ),
        frame("a frame of broken utf-8", b"{\"jsonrpc\":\"\xff\"}"),
    ]
}

fn upgrades() -> Vec<Hostile> {
    let key = "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==";
    let usual = "upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13";
    vec![
        upgrade("an upgrade without a key", usual),
        upgrade(
            "an upgrade of another version",
            &format!(
                "upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 99\r\n{key}"
            ),
        ),
        upgrade(
            "an upgrade without a version",
            &format!("upgrade: websocket\r\nconnection: upgrade\r\n{key}"),
        ),
        upgrade(
            "an upgrade without a connection",
            &format!("upgrade: websocket\r\nsec-websocket-version: 13\r\n{key}"),
        ),
        upgrade(
            "an upgrade to something else",
            "upgrade: h2c\r\nconnection: upgrade\r\nhttp2-settings: AAMAAABkAAQAAP__",
        ),
        upgrade(
            "an upgrade from another origin",
            &format!("{usual}\r\n{key}\r\norigin: https://evil.example"),
        ),
        upgrade(
            "an upgrade from the origin null",
            &format!("{usual}\r\n{key}\r\norigin: null"),
        ),
        raw(
            "an upgrade by post",
            format!(
                "POST /rpc HTTP/1.1\r\nhost: localhost\r\n{usual}\r\n{key}\r\ncontent-length: 0\r\n\r\n"
            ),
        ),
        raw(
            "an upgrade elsewhere",
            format!("GET /forrst HTTP/1.1\r\nhost: localhost\r\n{usual}\r\n{key}\r\n\r\n"),
        ),
        raw(
            "an upgrade in http 1.0",
            format!("GET /rpc HTTP/1.0\r\nhost: localhost\r\n{usual}\r\n{key}\r\n\r\n"),
        ),
    ]
}

fn sockets() -> Vec<Hostile> {
    let text = 0x81;
    vec![
        socket("nothing after the upgrade", ""),
        socket("a frame without a mask", b"\x81\x05hello".to_vec()),
        socket("a frame with reserved bits", masked(0xf1, b"hello")),
        socket("a frame of an unknown kind", masked(0x8f, b"hello")),
        socket(
            "a frame of all the bytes there are",
            b"\x81\xff\x7f\xff\xff\xff\xff\xff\xff\xff\0\0\0\0".to_vec(),
        ),
        socket(
            "a frame of a negative length",
            b"\x81\xff\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0".to_vec(),
        ),
        socket(
            "a message that is too large",
            masked(text, &vec![b' '; 2_000_000]),
        ),
        socket(
            "a message in pieces that never ends",
            [
                masked(0x01, b"{"),
                masked(0x00, &vec![b' '; 60_000]).repeat(40),
            ]
            .concat(),
        ),
        socket("a piece without a beginning", masked(0x80, b"hello")),
        socket(
            "a second beginning",
            [masked(0x01, b"a"), masked(0x01, b"b")].concat(),
        ),
        socket("a ping that is too long", masked(0x89, &[b'x'; 200])),
        socket("a ping in pieces", masked(0x09, b"x")),
        socket("ten thousand pings", masked(0x89, b"x").repeat(10_000)),
        socket("text of broken utf-8", masked(text, b"\xff\xfe")),
        socket("a close of one byte", masked(0x88, b"x")),
        socket("a close of an unknown code", masked(0x88, &[0xff, 0xff])),
        socket(
            "a frame after the close",
            [masked(0x88, &[0x03, 0xe8]), masked(text, b"{}")].concat(),
        ),
        socket("half a frame", b"\x81\x85\0\0\0\0he".to_vec()),
        socket(
            "nonsense in frames",
            masked(text, b"nonsense").repeat(1_000),
        ),
        socket(
            "http after the upgrade",
            "GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n",
        ),
        socket(
            "a deep message",
            masked(text, deep("[", "]", 30_000).as_bytes()),
        ),
        socket(
            "two thousand calls at once",
            masked(
                text,
                format!(r#"{{"jsonrpc":"2.0","id":1,"method":"forrst.call","params":{CALL}}}"#)
                    .as_bytes(),
            )
            .repeat(2_000),
        ),
    ]
}

fn unix_frames() -> Vec<Hostile> {
    vec![
        unix("nothing on the unix socket", ""),
        unix("half a length", b"\0\0".to_vec()),
        unix("a length of 4 GB", b"\xff\xff\xff\xff{}".to_vec()),
        unix(
            "a length of 2 MB",
            [b"\0\x20\0\0".to_vec(), vec![b' '; 0x20_0000]].concat(),
        ),
        unix("a frame of nothing", b"\0\0\0\0".repeat(1_000)),
        unix("http on the unix socket", "GET /health HTTP/1.1\r\n\r\n"),
        unix("a frame that breaks off", b"\0\0\x01\0{".to_vec()),
        unix("a frame of nonsense", unix_frame(b"nonsense").repeat(1_000)),
        unix(
            "a frame of broken utf-8 on the unix socket",
            unix_frame(b"\xff\xfe"),
        ),
        unix(
            "a deep frame on the unix socket",
            unix_frame(deep("[", "]", 100_000).as_bytes()),
        ),
    ]
}
