//! The error of a command: messages and a hint for people, JSON for programs, and an exit code.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};
use forrst_client::{Cause, Error};
use forrst_protocol::{ErrorCode, ErrorObject, Source};
use serde_json::{Value, json};

use crate::exit;
use crate::output::{quoted, sanitized};

const ERROR: Style = AnsiColor::Red.on_default().bold();
const LABEL: Style = Style::new().bold();

/// The error of a command.
#[derive(Debug)]
pub(crate) struct CommandError {
    code: u8,
    problems: Vec<Problem>,
    hint: Option<String>,
    /// Whether it is also printed as JSON, for a command with `--json`.
    has_json: bool,
}

#[derive(Debug)]
struct Problem {
    message: String,
    /// The error as the server sent it, if it did.
    object: Option<Value>,
    /// Which part of the request it is about: a JSON pointer or a byte position.
    location: Option<String>,
}

impl From<String> for CommandError {
    fn from(message: String) -> Self {
        Self::local(message)
    }
}

impl CommandError {
    fn new(code: u8, message: impl Into<String>) -> Self {
        let problem = Problem {
            message: message.into(),
            object: None,
            location: None,
        };
        Self {
            code,
            problems: vec![problem],
            hint: None,
            has_json: true,
        }
    }

    /// The command line is wrong.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(exit::USAGE, message)
    }

    /// Something on this machine failed.
    pub(crate) fn local(message: impl Into<String>) -> Self {
        Self::new(exit::FAILED, message)
    }

    /// With another exit code.
    pub(crate) fn exiting(mut self, code: u8) -> Self {
        self.code = code;
        self
    }

    /// Adds what to do about it.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// From the errors that a server reported.
    pub(crate) fn from_server(errors: &[ErrorObject]) -> Self {
        let first = errors.first();
        Self {
            code: first.map_or(exit::FAILED, |error| exit_code(&error.code)),
            problems: errors.iter().map(Problem::new).collect(),
            hint: first.and_then(hint_for),
            has_json: true,
        }
    }

    /// From an error of the client of the server at `url`.
    pub(crate) fn from_client(url: &str, error: Error) -> Self {
        if let Some(failure) = error.failure() {
            return Self::from_server(failure.errors());
        }
        let chain = with_sources(&error);
        let is_untrusted = error.is_certificate_error();
        match error {
            Error::Unreachable(cause) if is_untrusted => Self::new(
                exit::UNAVAILABLE,
                format!(
                    "the certificate of {url} is not trusted: {}",
                    root_of(&cause)
                ),
            )
            .hint("SSL_CERT_FILE names the certificates of a private authority"),
            Error::Unreachable(cause) => Self::new(
                exit::UNAVAILABLE,
                format!("no server can be reached at {url}: {}", root_of(&cause)),
            )
            .hint(
                "is it running? `forrst serve --demo` starts one; --url or FORRST_URL name another",
            ),
            Error::Interrupted(cause) => {
                let message = "the server did not answer, and may have carried out the request";
                Self::new(
                    exit::UNAVAILABLE,
                    format!("{url}: {message}: {}", root_of(&cause)),
                )
                .hint("`forrst lock status` and `forrst lock list` show which locks are held")
            }
            Error::Protocol(_) => Self::new(exit::UNAVAILABLE, format!("{url}: {chain}"))
                .hint("is it a Forrst server?"),
            Error::Unauthorized(_) | Error::Forbidden(_) => {
                Self::new(exit::NOT_ALLOWED, chain).hint("the API key is read from FORRST_API_KEY")
            }
            Error::Configuration(_) if !url.contains("://") && !url.starts_with("unix:") => {
                Self::usage(chain).hint(format!("write http://{url}"))
            }
            Error::Configuration(_) | Error::InvalidRequest(_) => Self::usage(chain),
            Error::Lost(_) => Self::new(exit::LOST, chain),
            _ => Self::new(exit::FAILED, chain),
        }
    }

    /// Not to be printed as JSON: the command has printed the server's answer already.
    pub(crate) fn without_json(mut self) -> Self {
        self.has_json = false;
        self
    }

    pub(crate) fn exit_code(&self) -> u8 {
        self.code
    }

    /// For programs: `{"errors": […]}`, also for errors that no server has reported.
    pub(crate) fn as_json(&self) -> Option<Value> {
        let local = |message: &str| json!({"code": local_code(self.code), "message": message});
        let errors: Vec<Value> = self
            .problems
            .iter()
            .map(|problem| problem.object.clone().unwrap_or(local(&problem.message)))
            .collect();
        self.has_json.then(|| json!({"errors": errors}))
    }

    /// For people, in colours.
    pub(crate) fn to_text(&self) -> String {
        let mut text = String::new();
        for problem in &self.problems {
            let _ = writeln!(
                text,
                "{ERROR}error:{ERROR:#} {}",
                sanitized(&problem.message)
            );
            if let Some(location) = &problem.location {
                let _ = writeln!(text, "  {LABEL}at{LABEL:#}    {}", sanitized(location));
            }
        }
        if let Some(hint) = &self.hint {
            let _ = writeln!(text, "  {LABEL}hint{LABEL:#}  {}", sanitized(hint));
        }
        text
    }
}

impl Problem {
    fn new(error: &ErrorObject) -> Self {
        Self {
            message: format!("{} ({})", error.message, error.code),
            object: serde_json::to_value(error).ok(),
            location: error.source.as_ref().map(|source| match source {
                Source::Pointer(pointer) => pointer.as_str().to_owned(),
                Source::Position(position) => format!("byte {position}"),
            }),
        }
    }
}

/// The code that a server would have reported.
fn local_code(exit_code: u8) -> &'static str {
    match exit_code {
        exit::USAGE => "INVALID_REQUEST",
        exit::UNAVAILABLE => "UNAVAILABLE",
        exit::NOT_ALLOWED => "FORBIDDEN",
        _ => "COMMAND_FAILED",
    }
}

fn exit_code(code: &ErrorCode) -> u8 {
    match code {
        ErrorCode::LockAcquisitionFailed | ErrorCode::LockTimeout => exit::NOT_ACQUIRED,
        ErrorCode::Unauthorized | ErrorCode::Forbidden => exit::NOT_ALLOWED,
        ErrorCode::Unavailable | ErrorCode::ServerMaintenance => exit::UNAVAILABLE,
        // Only ^C cancels a call of this program.
        ErrorCode::Cancelled => exit::INTERRUPTED,
        _ => exit::FAILED,
    }
}

/// What to do about an error with this code.
fn hint_for(error: &ErrorObject) -> Option<String> {
    let detail = |name: &str| error.details.as_ref()?.get(name)?.as_str();
    let lock = detail("full_key").map_or("KEY".to_owned(), quoted);
    Some(match &error.code {
        ErrorCode::LockAcquisitionFailed => {
            format!("wait for it with --block 10s, or see who holds it: forrst lock status {lock}")
        }
        ErrorCode::LockTimeout => format!("see who holds it: forrst lock status {lock}"),
        ErrorCode::LockNotFound => {
            "it is free, or its lease has ended; `forrst lock list` shows all locks that are held"
                .to_owned()
        }
        ErrorCode::LockOwnershipMismatch => {
            "--owner (and --fence) must be those of the lease; `forrst lock status` shows them"
                .to_owned()
        }
        ErrorCode::FunctionNotFound => {
            "`forrst call urn:cline:forrst:fn:capabilities` lists all functions".to_owned()
        }
        ErrorCode::InvalidArguments => {
            "`forrst call urn:cline:forrst:fn:describe function=NAME` shows what a function takes"
                .to_owned()
        }
        ErrorCode::Unauthorized => "the API key is read from FORRST_API_KEY".to_owned(),
        ErrorCode::Unavailable => {
            "try again in a moment; `forrst call urn:cline:forrst:fn:health` says more".to_owned()
        }
        _ => return None,
    })
}

/// The message of an error and of its sources. Some errors repeat the text of their source, so only new text is added.
fn with_sources(error: &Error) -> String {
    use std::error::Error as _;
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            let _ = write!(text, ": {cause_text}");
        }
        source = cause.source();
    }
    text
}

/// The innermost cause, such as `Connection refused`, without the layers of the HTTP client around it.
fn root_of(cause: &Cause) -> String {
    let mut root: &(dyn std::error::Error + 'static) = cause.as_ref();
    while let Some(source) = root.source() {
        root = source;
    }
    root.to_string()
}
