//! A map of values by type: the state of the application, and what extensions pass on to functions.

use std::any::{Any, TypeId, type_name};
use std::fmt;
use std::sync::Arc;

/// At most one value of each type. Cheap to clone; clones are independent.
#[derive(Clone, Default)]
pub(crate) struct Values(Option<Arc<[TypedValue]>>);

type TypedValue = (TypeId, Arc<dyn Any + Send + Sync>);

impl Values {
    pub(crate) fn insert<T: Send + Sync + 'static>(&mut self, value: T) {
        let own = TypeId::of::<T>();
        let others = self.0.iter().flat_map(|values| values.iter());
        let others = others.filter(|(id, _)| *id != own).cloned();
        let value: TypedValue = (own, Arc::new(value));
        self.0 = Some(others.chain([value]).collect());
    }

    pub(crate) fn get<T: Send + Sync + 'static>(&self) -> Option<&T> {
        let own = TypeId::of::<T>();
        let (_, value) = self.0.as_ref()?.iter().find(|(id, _)| *id == own)?;
        value.downcast_ref()
    }
}

impl fmt::Debug for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.as_ref().map_or(0, |values| values.len());
        write!(f, "Values({count})")
    }
}

/// The server has no [`state`](crate::ServerBuilder::state) of a type that a function needs.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the server has no state of the type `{0}`: give it one with `Server::builder().state(…)`")]
pub struct MissingState(&'static str);

impl MissingState {
    pub(super) fn of<T>() -> Self {
        Self(type_name::<T>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_value_of_each_type_and_clones_keep_their_own() {
        let mut values = Values::default();
        assert_eq!(values.get::<u32>(), None);
        values.insert(1_u32);
        values.insert("text");
        let before = values.clone();
        values.insert(2_u32);
        assert_eq!(before.get::<u32>(), Some(&1));
        assert_eq!(values.get::<u32>(), Some(&2));
        assert_eq!(values.get::<&str>(), Some(&"text"));
    }
}
