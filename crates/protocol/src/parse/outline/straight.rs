//! Reading an outline when everything is of the kind that it must be.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::{CALL, ENVELOPE, EXTENSION, Outline, PROTOCOL, Part};
use crate::ExtensionRequest;
use crate::parse::envelope::Reader;
use crate::parse::members::{IndexIn, Named};
use crate::parse::path::Path;

pub(super) fn read<'a>(
    text: &'a str,
    reader: &mut Reader<'a>,
) -> Result<Outline<'a>, serde_json::Error> {
    let mut json = serde_json::Deserializer::from_str(text);
    let outline = json.deserialize_map(Envelope { reader })?;
    json.end()?;
    Ok(outline)
}

struct Envelope<'a, 'p> {
    reader: &'p mut Reader<'a>,
}

impl<'de> Visitor<'de> for Envelope<'de, '_> {
    type Value = Outline<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a request")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut envelope: A) -> Result<Self::Value, A::Error> {
        let mut outline = Outline::default();
        while let Some(index) = envelope.next_key_seed(IndexIn(&ENVELOPE))? {
            let Some(name) = index.map(|index| ENVELOPE[index]) else {
                envelope.next_value::<IgnoredAny>()?;
                continue;
            };
            let path = Path::Root.member(name);
            let reader = &mut *self.reader;
            match name {
                "protocol" => {
                    let protocol = envelope.next_value_seed(Named {
                        names: PROTOCOL,
                        path,
                        problems: &mut reader.problems,
                    })?;
                    outline
                        .protocol
                        .put(Part::Open(protocol), path, &mut reader.problems);
                }
                "call" => {
                    let call = envelope.next_value_seed(Named {
                        names: CALL,
                        path,
                        problems: &mut reader.problems,
                    })?;
                    outline
                        .call
                        .put(Part::Open(call), path, &mut reader.problems);
                }
                "extensions" => {
                    let extensions = envelope.next_value_seed(Extensions { path, reader })?;
                    outline
                        .extensions
                        .put(Part::Open(extensions), path, &mut self.reader.problems);
                }
                "id" => outline
                    .id
                    .put(envelope.next_value()?, path, &mut reader.problems),
                _ => outline
                    .context
                    .put(envelope.next_value()?, path, &mut reader.problems),
            }
        }
        Ok(outline)
    }
}

struct Extensions<'a, 'p> {
    path: Path<'p>,
    reader: &'p mut Reader<'a>,
}

impl<'de> DeserializeSeed<'de> for Extensions<'de, '_> {
    type Value = Vec<ExtensionRequest<'de>>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Extensions<'de, '_> {
    type Value = Vec<ExtensionRequest<'de>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Self::Value, A::Error> {
        let mut extensions: Vec<ExtensionRequest<'de>> = Vec::new();
        loop {
            let path = self.path.element(extensions.len());
            let named = Named {
                names: EXTENSION,
                path,
                problems: &mut self.reader.problems,
            };
            let Some(members) = array.next_element_seed(named)? else {
                return Ok(extensions);
            };
            extensions.extend(self.reader.extension(members, path));
        }
    }
}
