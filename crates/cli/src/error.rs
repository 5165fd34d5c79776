//! Why a command failed, in words that help, and in an exit code.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};
use forrst_client::{Cause, Error};
use forrst_protocol::{ErrorCode, ErrorObject, Source};
use serde_json::{Value, json};

use crate::exit;
use crate::output::{plain, quoted};

const ERROR: Style = AnsiColor::Red.on_default().bold();
const LABEL: Style = Style::new().bold();

/// Why a command failed.
#[derive(Debug)]
pub(crate) struct CommandError {
    code: u8,
    /// Each with what is to be said about it beyond its message.
    problems: Vec<Problem>,
    hint: Option<String>,
    is_for_programs: bool,
}

#[derive(Debug)]
struct Problem {
    message: String,
    /// As a program reads it, where a server has said it.
    object: Option<Value>,
    place: Option<String>,
}

/// Something on this machine does not work.
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
            place: None,
        };
        Self {
            code,
            problems: vec![problem],
            hint: None,
            is_for_programs: true,
        }
    }

    /// What is asked for makes no sense.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(exit::USAGE, message)
    }

    /// Something on this machine does not work.
    pub(crate) fn local(message: impl Into<String>) -> Self {
        Self::new(exit::FAILED, message)
    }

    /// With another exit code.
    pub(crate) fn exiting(mut self, code: u8) -> Self {
        self.code = code;
        self
    }

    /// Says what to do about it.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// What a server has answered.
    pub(crate) fn of_server(errors: &[ErrorObject]) -> Self {
        let first = errors.first();
        Self {
            code: first.map_or(exit::FAILED, |error| exit_code(&error.code)),
            problems: errors.iter().map(Problem::of).collect(),
            hint: first.and_then(hint_about),
            is_for_programs: true,
        }
    }

    /// What the client has to say about that server.
    pub(crate) fn of_client(url: &str, error: Error) -> Self {
        if let Some(failure) = error.failure() {
            return Self::of_server(failure.errors());
        }
        let chain = with_sources(&error);
        match error {
            Error::Unreachable(cause) if root_of(&cause).contains("certificate") => Self::new(
                exit::UNAVAILABLE,
                format!("{url} is not trusted: {}", root_of(&cause)),
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
                let message = "the server gave no answer, and may have done what it was asked for";
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

    /// Says it to people only.
    pub(crate) fn in_words_only(mut self) -> Self {
        self.is_for_programs = false;
        self
    }

    pub(crate) fn exit_code(&self) -> u8 {
        self.code
    }

    /// For a program: `{"errors": […]}`, also where it is not a server that has said it.
    pub(crate) fn as_json(&self) -> Option<Value> {
        let own = |message: &str| json!({"code": own_code(self.code), "message": message});
        let errors: Vec<Value> = self
            .problems
            .iter()
            .map(|problem| problem.object.clone().unwrap_or(own(&problem.message)))
            .collect();
        self.is_for_programs.then(|| json!({"errors": errors}))
    }

    /// For people, with colours.
    pub(crate) fn told(&self) -> String {
        let mut text = String::new();
        for problem in &self.problems {
            let _ = writeln!(text, "{ERROR}error:{ERROR:#} {}", plain(&problem.message));
            if let Some(place) = &problem.place {
                let _ = writeln!(text, "  {LABEL}at{LABEL:#}    {}", plain(place));
            }
        }
        if let Some(hint) = &self.hint {
            let _ = writeln!(text, "  {LABEL}hint{LABEL:#}  {}", plain(hint));
        }
        text
    }
}

impl Problem {
    fn of(error: &ErrorObject) -> Self {
        Self {
            message: format!("{} ({})", error.message, error.code),
            object: serde_json::to_value(error).ok(),
            place: error.source.as_ref().map(|source| match source {
                Source::Pointer(pointer) => pointer.as_str().to_owned(),
                Source::Position(position) => format!("byte {position}"),
            }),
        }
    }
}

/// What a server would have called it, where it could have said it.
fn own_code(exit_code: u8) -> &'static str {
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
        _ => exit::FAILED,
    }
}

/// What to do about it, where the code tells.
fn hint_about(error: &ErrorObject) -> Option<String> {
    let detail = |name: &str| error.details.as_ref()?.get(name)?.as_str();
    let lock = detail("full_key").map_or("KEY".to_owned(), quoted);
    Some(match &error.code {
        ErrorCode::LockAcquisitionFailed => {
            format!("wait for it with --block 10s, or see who holds it: forrst lock status {lock}")
        }
        ErrorCode::LockTimeout => format!("see who holds it: forrst lock status {lock}"),
        ErrorCode::LockNotFound => {
            "nobody holds it, or its lease has ended; `forrst lock list` shows all that are held"
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

/// What went wrong, and what went wrong below it.
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

/// What is at the bottom of it, such as `Connection refused`, without the layers of the HTTP client above it.
fn root_of(cause: &Cause) -> String {
    let mut root: &(dyn std::error::Error + 'static) = cause.as_ref();
    while let Some(source) = root.source() {
        root = source;
    }
    let text = root.to_string();
    let layers = [
        "error sending request: ",
        "client error (Connect): ",
        "client error (SendRequest): ",
    ];
    let text = layers.iter().fold(text.as_str(), |text, layer| {
        text.strip_prefix(layer).unwrap_or(text)
    });
    text.to_owned()
}
