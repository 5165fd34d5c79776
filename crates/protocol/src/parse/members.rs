//! Objects and arrays taken apart one level deep, their parts left raw.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::path::Path;
use crate::problems::Problems;

/// What an object has under one of the names asked for.
#[derive(Debug, Clone, Copy, Default)]
pub(super) enum Member<T> {
    #[default]
    Absent,
    Present(T),
    /// More than once, which has been noted as a problem: which one is meant is not known.
    Repeated,
}

/// A member that nobody has looked into.
pub(super) type Raw<'a> = Member<&'a RawValue>;

impl<T> Member<T> {
    pub(super) fn put(&mut self, value: T, path: Path<'_>, problems: &mut Problems) {
        *self = match self {
            Self::Absent => Self::Present(value),
            Self::Repeated => Self::Repeated,
            Self::Present(_) => {
                problems.invalid(path, || format!("`{path}` stands there more than once"));
                Self::Repeated
            }
        };
    }

    pub(super) fn try_map<U, E>(self, map: impl FnOnce(T) -> Result<U, E>) -> Result<Member<U>, E> {
        Ok(match self {
            Self::Absent => Member::Absent,
            Self::Present(value) => Member::Present(map(value)?),
            Self::Repeated => Member::Repeated,
        })
    }
}

/// Reads the named members of an object, and reads over all others.
pub(super) struct Named<'p, const N: usize> {
    pub(super) names: [&'static str; N],
    pub(super) path: Path<'p>,
    pub(super) problems: &'p mut Problems,
}

impl<const N: usize> Named<'_, N> {
    /// All of a text that starts with `{`, also with keys that are no Unicode, so that the only errors are of syntax.
    pub(super) fn read_any(self, object: &str) -> Result<[Raw<'_>; N], serde_json::Error> {
        let mut json = serde_json::Deserializer::from_str(object);
        let members = json.deserialize_map(AnyKeys(self))?;
        json.end()?;
        Ok(members)
    }

    fn put<'a>(&mut self, members: &mut [Raw<'a>; N], index: usize, value: &'a RawValue) {
        let path = self.path.member(self.names[index]);
        members[index].put(value, path, self.problems);
    }
}

impl<'de, const N: usize> DeserializeSeed<'de> for Named<'_, N> {
    type Value = [Raw<'de>; N];

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, const N: usize> Visitor<'de> for Named<'_, N> {
    type Value = [Raw<'de>; N];

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut object: A) -> Result<Self::Value, A::Error> {
        let mut members = [Member::Absent; N];
        while let Some(index) = object.next_key_seed(IndexIn(&self.names))? {
            match index {
                Some(index) => self.put(&mut members, index, object.next_value()?),
                None => object.next_value::<IgnoredAny>().map(drop)?,
            }
        }
        Ok(members)
    }
}

struct AnyKeys<'p, const N: usize>(Named<'p, N>);

impl<'de, const N: usize> Visitor<'de> for AnyKeys<'_, N> {
    type Value = [Raw<'de>; N];

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut object: A) -> Result<Self::Value, A::Error> {
        let mut members = [Member::Absent; N];
        while let Some((key, value)) = object.next_entry::<&RawValue, &RawValue>()? {
            // A key that is no Unicode is none of the names, like any other that is not.
            let index = unescape(key.get()).and_then(|key| index_of(&key, &self.0.names));
            if let Some(index) = index {
                self.0.put(&mut members, index, value);
            }
        }
        Ok(members)
    }
}

fn index_of(key: &str, names: &[&str]) -> Option<usize> {
    names.iter().position(|name| *name == key)
}

/// Reads a key as its place among the names.
pub(super) struct IndexIn<'p>(pub(super) &'p [&'static str]);

impl<'de> DeserializeSeed<'de> for IndexIn<'_> {
    type Value = Option<usize>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for IndexIn<'_> {
    type Value = Option<usize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E>(self, key: &str) -> Result<Self::Value, E> {
        Ok(index_of(key, self.0))
    }
}

/// Hands over the elements of an array one by one.
pub(super) fn each_element<'a>(
    array: &'a RawValue,
    visit: impl FnMut(usize, &'a RawValue) -> Result<(), serde_json::Error>,
) -> Result<(), serde_json::Error> {
    let mut json = serde_json::Deserializer::from_str(array.get());
    json.deserialize_seq(EachElement(visit))??;
    json.end()
}

struct EachElement<F>(F);

impl<'de, F, E> Visitor<'de> for EachElement<F>
where
    F: FnMut(usize, &'de RawValue) -> Result<(), E>,
{
    type Value = Result<(), E>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut array: A) -> Result<Self::Value, A::Error> {
        let mut index = 0;
        let mut visited = Ok(());
        while let Some(element) = array.next_element()? {
            visited = visited.and_then(|()| (self.0)(index, element));
            index += 1;
        }
        Ok(visited)
    }
}

/// The text that a JSON string stands for; none where an escape in it is half of a surrogate pair, which JSON allows and
/// Unicode does not.
pub(super) fn unescape(quoted: &str) -> Option<Cow<'_, str>> {
    if quoted.contains('\\') {
        serde_json::from_str(quoted).ok().map(Cow::Owned)
    } else {
        quoted.get(1..quoted.len() - 1).map(Cow::Borrowed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_unescaped_unless_they_are_no_unicode() {
        assert!(matches!(
            unescape(r#""plain é""#),
            Some(Cow::Borrowed("plain é"))
        ));
        assert_eq!(unescape(r#""""#).unwrap(), "");
        assert_eq!(unescape(r#""\u0069d""#).unwrap(), "id");
        assert_eq!(unescape(r#""\ud83d\ude00\n""#).unwrap(), "😀\n");
        assert_eq!(unescape(r#""\ud83d""#), None);
        assert_eq!(unescape(r#""\ude00 \ud83d""#), None);
    }
}
