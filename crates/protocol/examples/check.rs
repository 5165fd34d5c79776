//! Reads a request from standard input. Prints it again in its plain form, or prints the answer that refuses it and exits
//! with 1.
//!
//!     echo '{"id": 7}' | cargo run -p forrst-protocol --example check

use std::io::{self, Read, Write};
use std::process::ExitCode;

use forrst_protocol::{Request, Response};

fn main() -> io::Result<ExitCode> {
    let mut body = Vec::new();
    io::stdin().read_to_end(&mut body)?;
    let (written, code) = match Request::parse(&body) {
        Ok(request) => (serde_json::to_string_pretty(&request)?, ExitCode::SUCCESS),
        Err(rejection) => (
            serde_json::to_string_pretty(&Response::from(rejection))?,
            ExitCode::FAILURE,
        ),
    };
    writeln!(io::stdout(), "{written}")?;
    Ok(code)
}
