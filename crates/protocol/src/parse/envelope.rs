//! What each member of the envelope has to be. Each check notes what is wrong and goes on, so that all problems are reported
//! together.

use std::borrow::Cow;
use std::fmt::Display;

use super::members::{Member, Raw};
use super::outline::{Outline, Part};
use super::path::Path;
use super::repeated_keys::RepeatedKeys;
use crate::problems::{Excerpt, Problems};
use crate::raw::{Kind, is_empty_array};
use crate::scan::unescape;
use crate::{
    Call, ErrorCode, ErrorObject, Errors, ExtensionRequest, FunctionName, PROTOCOL_NAME, RawObject,
    Rejection, Request, RequestId, Urn, Version, negotiate,
};

/// Builds a request from its parts. A part that is not what it has to be is noted as a problem.
pub(super) struct Reader<'a> {
    pub(super) problems: Problems,
    /// `None` if the text is nested too deep, because the search takes memory for every level.
    repeated_keys: Option<RepeatedKeys<'a>>,
    /// Whether what was scanned so far makes the search necessary.
    pub(super) has_unusual_keys: bool,
}

impl<'a> Reader<'a> {
    pub(super) fn new(looks_inside: bool) -> Self {
        Self {
            problems: Problems::default(),
            repeated_keys: looks_inside.then(RepeatedKeys::default),
            has_unusual_keys: false,
        }
    }

    pub(super) fn request(mut self, outline: Outline<'a>) -> Result<Request<'a>, Rejection> {
        let protocol = self.protocol(outline.protocol);
        let id = self.required_name(outline.id, Path::Root.member("id"), RequestId::parse);
        let call = self.call(outline.call);
        let context = self.optional_object(outline.context, Path::Root.member("context"));
        let extensions = self.extensions(outline.extensions);

        match (self.problems.into_errors(), protocol, id, call) {
            (None, Some(protocol), Some(id), Some(call)) => {
                let mut request = Request::from_parts(protocol, id, call);
                request.context = context;
                request.extensions = extensions;
                Ok(request)
            }
            (errors, _, id, _) => {
                let rejection = Rejection::new(id, errors.unwrap_or_else(incomplete));
                Err(rejection.asking_for(extensions.into_iter().map(|extension| extension.urn)))
            }
        }
    }

    fn protocol(&mut self, member: Member<Part<'a, [Raw<'a>; 2]>>) -> Option<Version> {
        let path = Path::Root.member("protocol");
        let [name, version] = self.required_part(member, path, Kind::Object)?;
        self.protocol_name(name, path.member("name"));
        let version = self.required_name(version, path.member("version"), Version::parse)?;
        match negotiate(&version) {
            Ok(_) => Some(version),
            Err(unsupported) => {
                self.problems.note(|| unsupported.into());
                None
            }
        }
    }

    fn protocol_name(&mut self, member: Raw<'a>, path: Path<'_>) {
        let Some(raw) = self.required(member, path, Kind::Text) else {
            return;
        };
        if let Some(name) = self.text(raw, path)
            && name != PROTOCOL_NAME
        {
            self.problems.invalid(path, || {
                format!(
                    "`{path}` must be \"{PROTOCOL_NAME}\", found {}",
                    Excerpt(&name)
                )
            });
        }
    }

    fn call(&mut self, member: Member<Part<'a, [Raw<'a>; 3]>>) -> Option<Call<'a>> {
        let path = Path::Root.member("call");
        let [function, version, arguments] = self.required_part(member, path, Kind::Object)?;
        let function = self.required_name(function, path.member("function"), FunctionName::parse);
        let version = self.optional_name(version, path.member("version"), Version::parse);
        let arguments = self.optional_object(arguments, path.member("arguments"));
        Some(Call {
            function: function?,
            version,
            arguments: arguments.unwrap_or_default(),
        })
    }

    fn extensions(
        &mut self,
        member: Member<Part<'a, Vec<ExtensionRequest<'a>>>>,
    ) -> Vec<ExtensionRequest<'a>> {
        let path = Path::Root.member("extensions");
        self.optional_part(member, path, Kind::Array)
            .unwrap_or_default()
    }

    pub(super) fn extension(
        &mut self,
        [urn, options, required]: [Raw<'a>; 3],
        path: Path<'_>,
    ) -> Option<ExtensionRequest<'a>> {
        let urn = self.required_name(urn, path.member("urn"), Urn::parse);
        let options = self.optional_object(options, path.member("options"));
        let required = self.optional(required, path.member("required"), Kind::Boolean);
        Some(ExtensionRequest {
            urn: urn?,
            options,
            required: required.is_none_or(|required| required == "true"),
        })
    }

    fn required_part<T>(
        &mut self,
        member: Member<Part<'a, T>>,
        path: Path<'_>,
        kind: Kind,
    ) -> Option<T> {
        self.note_if_absent(&member, path, kind);
        self.optional_part(member, path, kind)
    }

    fn optional_part<T>(
        &mut self,
        member: Member<Part<'a, T>>,
        path: Path<'_>,
        kind: Kind,
    ) -> Option<T> {
        match member {
            Member::Present(Part::Open(parts)) => Some(parts),
            Member::Present(Part::OtherType(raw)) => {
                self.note_other_kind(kind, raw, path);
                None
            }
            Member::Absent | Member::Repeated => None,
        }
    }

    fn required_name<T, E: Display>(
        &mut self,
        member: Raw<'a>,
        path: Path<'_>,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let raw = self.required(member, path, Kind::Text)?;
        self.name(raw, path, parse)
    }

    fn optional_name<T, E: Display>(
        &mut self,
        member: Raw<'a>,
        path: Path<'_>,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let raw = self.optional(member, path, Kind::Text)?;
        self.name(raw, path, parse)
    }

    fn name<T, E: Display>(
        &mut self,
        raw: &'a str,
        path: Path<'_>,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let text = self.text(raw, path)?;
        match parse(&text) {
            Ok(name) => Some(name),
            Err(reason) => {
                self.problems.invalid(path, || {
                    format!("`{path}` is wrong: {reason}; found {}", Excerpt(&text))
                });
                None
            }
        }
    }

    fn optional_object(&mut self, member: Raw<'a>, path: Path<'_>) -> Option<RawObject<'a>> {
        // PHP writes an empty map as an empty list.
        let member = match member {
            Member::Present(raw) if is_empty_array(raw) => Member::Present("{}"),
            member => member,
        };
        let raw = self.optional(member, path, Kind::Object)?;
        if self.has_unusual_keys
            && let Some(repeated_keys) = &mut self.repeated_keys
        {
            repeated_keys.note(raw, path, &mut self.problems);
        }
        Some(RawObject::of_json(raw))
    }

    fn required(&mut self, member: Raw<'a>, path: Path<'_>, kind: Kind) -> Option<&'a str> {
        self.note_if_absent(&member, path, kind);
        self.optional(member, path, kind)
    }

    fn optional(&mut self, member: Raw<'a>, path: Path<'_>, kind: Kind) -> Option<&'a str> {
        match member {
            Member::Present(raw) if self.is(kind, raw, path) => Some(raw),
            _ => None,
        }
    }

    fn is(&mut self, kind: Kind, raw: &str, path: Path<'_>) -> bool {
        let is_of_kind = Kind::of(raw) == kind;
        if !is_of_kind {
            self.note_other_kind(kind, raw, path);
        }
        is_of_kind
    }

    fn note_if_absent<T>(&mut self, member: &Member<T>, path: Path<'_>, kind: Kind) {
        if let Member::Absent = member {
            self.problems
                .invalid(path, || format!("`{path}` is missing, expected {kind}"));
        }
    }

    pub(super) fn note_other_kind(&mut self, kind: Kind, raw: &str, path: Path<'_>) {
        let found = Kind::of(raw);
        self.problems
            .invalid(path, || format!("`{path}` must be {kind}, found {found}"));
    }

    fn text(&mut self, raw: &'a str, path: Path<'_>) -> Option<Cow<'a, str>> {
        let text = unescape(raw);
        if text.is_none() {
            self.problems.invalid(path, || {
                format!(
                    "`{path}` has an escape that is half of a surrogate pair, which is not Unicode"
                )
            });
        }
        text
    }
}

/// Every missing part was noted, so this is never reached; to refuse the request is the safe default.
fn incomplete() -> Errors {
    ErrorObject::new(ErrorCode::InvalidRequest, "The request is incomplete").into()
}
