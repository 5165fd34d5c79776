//! The options of a lock: those of the extension, and the arguments of `acquire`.
//!
//! Usual options are read in one pass. Anything else is read again by [`Fields`], which lists everything that is wrong.

use std::time::Duration as StdDuration;

use forrst_lock::{Attempt, LockKey, Note, Owner, Ttl};
use forrst_protocol::{Duration, Errors, FunctionName, Pointer, RawJson, RawObject, Unit};
use serde_json::Value;

use super::keys::{NamedKeys, RequestedKeys};
use crate::error::arguments_pointer;
use crate::extension::extension_pointer;
use crate::fields::{Fields, boolean, one_of, parsed};
use crate::limits::Limits;

/// Whether callers of other functions compete for the same lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    Function,
    Global,
}

impl Scope {
    const WORDS: [(&'static str, Self); 2] =
        [("function", Self::Function), ("global", Self::Global)];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Function => "function",
            Self::Global => "global",
        }
    }

    fn parse(word: &str) -> Option<Self> {
        let mut words = Self::WORDS.into_iter();
        words.find_map(|(own, scope)| (own == word).then_some(scope))
    }
}

/// The checked options of a lock.
#[derive(Debug)]
pub(crate) struct LockOptions {
    pub(crate) keys: NamedKeys,
    pub(crate) scope: Scope,
    pub(crate) owner: Owner,
    pub(crate) note: Option<Note>,
    pub(crate) ttl: Ttl,
    /// As it was sent, and as a duration.
    pub(crate) block: Option<(Duration, StdDuration)>,
    pub(crate) attempt: Option<Attempt>,
    pub(crate) auto_release: bool,
    pub(crate) renew: bool,
    pub(crate) at: At,
}

/// The location of the options in the request.
#[derive(Debug, Clone, Copy)]
pub(crate) enum At {
    /// The options of the extension with that index.
    Extension(usize),
    /// The arguments of `acquire`.
    Arguments,
}

impl At {
    pub(crate) fn pointer(self) -> Pointer {
        match self {
            Self::Extension(index) => extension_pointer(index).key("options"),
            Self::Arguments => arguments_pointer(),
        }
    }
}

impl LockOptions {
    /// The options of the extension, for a call of `function`.
    pub(crate) fn read(
        options: Option<&RawObject<'_>>,
        index: usize,
        function: &FunctionName,
        limits: &Limits,
    ) -> Result<Self, Errors> {
        let at = At::Extension(index);
        let plain = options.and_then(|options| read_plain(options, limits));
        let parts = match plain {
            Some(parts) if parts.function.is_none() && parts.common.attempt.is_none() => parts,
            _ => {
                let mut fields = Fields::read(options, at.pointer());
                let common = CommonOptions::read(&mut fields, limits);
                let scope = fields.optional("scope", one_of(&Scope::WORDS));
                let auto_release = fields.optional("auto_release", boolean);
                let renew = fields.optional("renew", boolean);
                AllOptions {
                    common: fields.finish_with(common)?,
                    scope,
                    auto_release,
                    renew,
                    function: None,
                }
            }
        };
        let scope = parts.scope.unwrap_or(Scope::Function);
        let function = match scope {
            Scope::Function => Some(function),
            Scope::Global => None,
        };
        Ok(Self {
            auto_release: parts.auto_release.unwrap_or(true),
            renew: parts.renew.unwrap_or(false),
            ..parts.common.named(function, at)?
        })
    }

    /// The arguments of `acquire`.
    pub(crate) fn read_arguments(
        arguments: &RawObject<'_>,
        limits: &Limits,
    ) -> Result<Self, Errors> {
        let at = At::Arguments;
        let (common, function) = match read_plain(arguments, limits) {
            Some(AllOptions {
                common,
                scope: None,
                auto_release: None,
                renew: None,
                function,
            }) => (common, function),
            _ => {
                let mut fields = Fields::read(Some(arguments), at.pointer());
                let common = CommonOptions::read(&mut fields, limits);
                let function = fields.optional("function", parsed(FunctionName::parse));
                let attempt = fields.optional("attempt", parsed(Attempt::parse));
                let common = fields.finish_with(common)?;
                (CommonOptions { attempt, ..common }, function)
            }
        };
        common.named(function.as_ref(), at)
    }
}

/// All options that a lock can have, checked one by one.
struct AllOptions {
    common: CommonOptions,
    /// Only for the extension.
    scope: Option<Scope>,
    auto_release: Option<bool>,
    renew: Option<bool>,
    /// Only for `acquire`.
    function: Option<FunctionName>,
}

/// What the extension and `acquire` have in common.
struct CommonOptions {
    keys: RequestedKeys,
    owner: Owner,
    note: Option<Note>,
    ttl: Ttl,
    block: Option<(Duration, StdDuration)>,
    attempt: Option<Attempt>,
}

impl CommonOptions {
    fn read(fields: &mut Fields, limits: &Limits) -> Option<Self> {
        let keys = RequestedKeys::read(fields);
        let ttl = read_ttl(fields, limits);
        let block = read_wait(fields, "block", limits);
        let owner = fields.optional("owner", parsed(Owner::parse));
        let note = fields.optional("note", note).flatten();
        Some(Self {
            keys: keys?,
            owner: owner.unwrap_or_else(Owner::random),
            note,
            ttl: ttl?,
            block,
            attempt: None,
        })
    }

    /// The options of a lock that is kept, in the scope of a function or global.
    fn named(self, function: Option<&FunctionName>, at: At) -> Result<LockOptions, Errors> {
        Ok(LockOptions {
            keys: self.keys.named(function)?,
            scope: match function {
                Some(_) => Scope::Function,
                None => Scope::Global,
            },
            owner: self.owner,
            note: self.note,
            ttl: self.ttl,
            block: self.block,
            attempt: self.attempt,
            auto_release: false,
            renew: false,
            at,
        })
    }
}

/// Reads the options of a lock on one key in one pass. `None` if anything is unusual or wrong, which [`Fields`] then explains.
fn read_plain(options: &RawObject<'_>, limits: &Limits) -> Option<AllOptions> {
    let (mut key, mut owner, mut note, mut attempt) = (None, None, None, None);
    let (mut ttl, mut block, mut function, mut scope) = (None, None, None, None);
    let (mut auto_release, mut renew) = (None, None);
    for (name, value) in options.members() {
        match &*name {
            "key" => key = Some(LockKey::parse(&value.as_str()?).ok()?),
            "ttl" => ttl = Some(Ttl::at_most(plain_time(value)?.1, limits.max_ttl).ok()?),
            "block" => {
                block = Some(plain_time(value).filter(|(_, wait)| *wait <= limits.max_block)?);
            }
            "owner" => owner = Some(Owner::parse(&value.as_str()?).ok()?),
            "note" => {
                let text = value.as_str()?;
                note = (!text.is_empty()).then(|| Note::parse(&text));
            }
            "attempt" => attempt = Some(Attempt::parse(&value.as_str()?).ok()?),
            "function" => function = Some(FunctionName::parse(&value.as_str()?).ok()?),
            "scope" => scope = Some(Scope::parse(&value.as_str()?)?),
            "auto_release" => auto_release = Some(value.as_bool()?),
            "renew" => renew = Some(value.as_bool()?),
            _ => return None,
        }
    }
    Some(AllOptions {
        common: CommonOptions {
            keys: RequestedKeys::one(key?),
            owner: owner.unwrap_or_else(Owner::random),
            note: note.transpose().ok()?,
            ttl: ttl?,
            block,
            attempt,
        },
        scope,
        auto_release,
        renew,
        function,
    })
}

/// A positive `{value, unit}`.
fn plain_time(json: RawJson<'_>) -> Option<(Duration, StdDuration)> {
    let (mut value, mut unit) = (None, None);
    for (name, member) in json.members()? {
        match &*name {
            "value" => value = Some(member.as_u64()?),
            "unit" => unit = Some(Unit::parse(&member.as_str()?)?),
            _ => return None,
        }
    }
    let duration = Duration::new(value?, unit?);
    let time = duration.to_std().ok()?;
    (!time.is_zero()).then_some((duration, time))
}

/// An empty note counts as no note.
fn note(value: &Value) -> Result<Option<Note>, String> {
    match value.as_str() {
        Some("") => Ok(None),
        _ => parsed(Note::parse)(value).map(Some),
    }
}

/// Reads `block`, or another time to wait, within the server's limit.
pub(crate) fn read_wait(
    fields: &mut Fields,
    name: &str,
    limits: &Limits,
) -> Option<(Duration, StdDuration)> {
    let wait = fields.optional_duration(name);
    if let Some((_, time)) = wait
        && time > limits.max_block
    {
        let max = Duration::from_std(limits.max_block);
        fields.refuse(name, format!("must be at most {max}"));
    }
    wait
}

/// Reads `ttl`, which is required, within the server's limit.
pub(crate) fn read_ttl(fields: &mut Fields, limits: &Limits) -> Option<Ttl> {
    let (_, time) = fields.required_duration("ttl")?;
    let ttl = Ttl::at_most(time, limits.max_ttl).ok();
    if ttl.is_none() {
        let max = Duration::from_std(limits.max_ttl);
        fields.refuse("ttl", format!("must be at most {max}"));
    }
    ttl
}

#[cfg(test)]
mod tests {
    use forrst_protocol::ErrorObject;
    use proptest::prelude::*;
    use serde_json::value::RawValue;
    use serde_json::{Map, json};

    use super::*;

    /// A member of the options, valid in most cases.
    fn member() -> impl Strategy<Value = (String, Value)> {
        let second = json!({"value": 30, "unit": "second"});
        let valid = vec![
            ("key", json!("user:1")),
            ("key", json!("cafe\u{301} \"1\"")),
            ("ttl", second.clone()),
            ("block", second),
            ("owner", json!("me")),
            ("note", json!("")),
            ("note", json!("a job")),
            ("scope", json!("global")),
            ("scope", json!("function")),
            ("auto_release", json!(false)),
            ("renew", json!(true)),
            ("attempt", json!("1")),
            ("function", json!("a.b")),
            ("mode", json!("shared")),
            ("limit", json!(3)),
        ];
        let any = vec![
            json!(null),
            json!(""),
            json!("x\u{0}"),
            json!(1),
            json!(true),
            json!([30, "second"]),
            json!({"value": 0, "unit": "second"}),
            json!({"value": 3.0, "unit": "second"}),
            json!({"value": u64::MAX, "unit": "day"}),
            json!({"value": 30, "unit": "second", "more": 1}),
            json!({"value": 30, "unit": {"second": null}}),
            json!({"function": null}),
        ];
        let valid = prop::sample::select(valid);
        let other = prop::option::weighted(0.1, prop::sample::select(any));
        (valid, other).prop_map(|((name, value), other)| (name.to_owned(), other.unwrap_or(value)))
    }

    fn options() -> impl Strategy<Value = Map<String, Value>> {
        let needed = json!({"key": "k", "ttl": {"value": 1, "unit": "minute"}});
        let Value::Object(needed) = needed else {
            unreachable!()
        };
        (
            prop::option::weighted(0.9, Just(needed)),
            prop::collection::vec(member(), 0..4),
        )
            .prop_map(|(needed, members)| needed.into_iter().flatten().chain(members).collect())
    }

    fn shown(read: Result<LockOptions, Errors>, owner: &Owner) -> Result<String, Vec<ErrorObject>> {
        let mut read = read.map_err(|errors| errors.iter().cloned().collect::<Vec<_>>())?;
        // A random owner differs each time.
        if read.owner.as_str().len() == 36 {
            read.owner = owner.clone();
        }
        Ok(format!("{read:?}"))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2048))]

        #[test]
        fn options_are_the_same_whether_they_are_read_in_one_pass_or_by_fields(options in options()) {
            let options = RawObject::from_serialize(&options).unwrap();
            let (limits, function) = (Limits::default(), FunctionName::parse("a.b").unwrap());
            // With an option that `read_plain` leaves to `Fields`, and that changes nothing.
            let with_mode = options.get().replacen('{', r#"{"mode": "exclusive", "#, 1);
            let owner = Owner::random();
            if read_plain(&options, &limits).is_some() && !options.get().contains("\"limit\"") {
                let with_mode = RawObject::try_from(RawValue::from_string(with_mode).unwrap()).unwrap();
                let plain = LockOptions::read(Some(&options), 0, &function, &limits);
                let by_fields = LockOptions::read(Some(&with_mode), 0, &function, &limits);
                let without_kind = |text: String| text.replace("Some(Mode(Exclusive))", "None");
                prop_assert_eq!(shown(plain, &owner), shown(by_fields, &owner).map(without_kind));
                let plain = LockOptions::read_arguments(&options, &limits);
                let by_fields = LockOptions::read_arguments(&with_mode, &limits);
                prop_assert_eq!(shown(plain, &owner), shown(by_fields, &owner).map(without_kind));
            }
        }
    }

    #[test]
    fn common_options_are_read_in_one_pass() {
        let options = json!({
            "key": "k", "ttl": {"value": 1, "unit": "minute"}, "block": {"value": 1, "unit": "second"},
            "owner": "me", "scope": "global", "auto_release": false,
        });
        let options = RawObject::from_serialize(&options).unwrap();
        assert!(read_plain(&options, &Limits::default()).is_some());
    }
}
