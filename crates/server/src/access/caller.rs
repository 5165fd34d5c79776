//! [`Caller`]: an authenticated client and its rights. All checks of rights are its methods, and deny by default.

use std::ops::Deref;
use std::sync::Arc;

use forrst_lock::{Caller as CallerName, LockName, Owner, Secret};
use forrst_protocol::{ErrorCode, ErrorObject, FunctionName};

use super::rights::{Needs, Rights, Role};

/// A client and its rights. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    /// `None` for a client that did not have to authenticate: on a server without keys, or through the unix socket.
    name: Option<CallerName>,
    rights: CallerRights,
}

/// The rights of a caller. The common case has no `Arc`, whose count all threads would contend for.
#[derive(Debug, Clone)]
enum CallerRights {
    All,
    FromFile(Arc<Rights>),
}

impl Deref for CallerRights {
    type Target = Rights;

    fn deref(&self) -> &Rights {
        match self {
            Self::All => Rights::all(),
            Self::FromFile(rights) => rights,
        }
    }
}

impl Caller {
    pub(super) fn new(name: CallerName, rights: Arc<Rights>) -> Self {
        Self {
            name: Some(name),
            rights: CallerRights::FromFile(rights),
        }
    }

    pub(crate) fn with_all_rights(name: Option<CallerName>) -> Self {
        Self {
            name,
            rights: CallerRights::All,
        }
    }

    pub(crate) fn name(&self) -> Option<&CallerName> {
        self.name.as_ref()
    }

    /// Whether the caller has one of the roles; `false` if the list is empty.
    pub(crate) fn has_one_of(&self, roles: &[Role]) -> bool {
        roles.iter().any(|role| self.rights.has(*role))
    }

    /// `FORBIDDEN` unless the caller may call a system function.
    pub(crate) fn check_needs(&self, needs: Needs, what: &str) -> Result<(), ErrorObject> {
        match needs {
            Needs::AnyCaller => Ok(()),
            Needs::OneOf(roles) => self.check_roles(roles, what),
        }
    }

    /// `FORBIDDEN` unless the caller has one of the roles.
    pub(crate) fn check_roles(&self, roles: &[Role], what: &str) -> Result<(), ErrorObject> {
        if self.has_one_of(roles) {
            return Ok(());
        }
        let names: Vec<&str> = roles.iter().map(|role| role.as_str()).collect();
        let message = format!("`{what}` needs the role {}", names.join(" or "));
        Err(forbidden(message).with_detail("function", what))
    }

    /// `FORBIDDEN` unless the caller may call this function of the application, whether or not it exists.
    pub(crate) fn check_function(&self, function: &FunctionName) -> Result<(), ErrorObject> {
        self.check_roles(&[Role::Call], function.as_str())?;
        if self.rights.covers_function(function.as_str()) {
            return Ok(());
        }
        let message = format!("`{function}` is not among the functions that this caller may call");
        Err(forbidden(message).with_detail("function", function.as_str()))
    }

    /// `FORBIDDEN` if the caller is confined to other locks.
    pub(crate) fn check_lock(&self, name: &LockName) -> Result<(), ErrorObject> {
        if self.rights.covers_lock(name) {
            return Ok(());
        }
        let message = format!("`{name}` is not among the locks that this caller may use");
        Err(forbidden(message).with_detail("key", name.as_str()))
    }

    pub(crate) fn may_see(&self, name: &LockName) -> bool {
        self.rights.covers_lock(name)
    }

    /// The common prefix of all names of locks that the caller may use.
    pub(crate) fn common_prefix_of_locks(&self) -> &str {
        self.rights.common_prefix_of_locks()
    }

    pub(crate) fn is_confined(&self) -> bool {
        self.rights.is_confined()
    }

    /// The owner of a lease as this caller may see it: the token, or a hash of it.
    ///
    /// The token releases the whole lease, so an admin gets it only if it may use all of its keys.
    pub(crate) fn visible_owner(
        &self,
        owner: &Owner,
        taken_by: Option<&CallerName>,
        may_use_all_keys: bool,
        secret: &Secret,
    ) -> String {
        let is_own = self.name.is_some() && self.name.as_ref() == taken_by;
        if is_own || (self.rights.has(Role::Admin) && may_use_all_keys) {
            return owner.as_str().to_owned();
        }
        format!("hmac:{}", secret.hash("owner", owner.as_str()))
    }
}

fn forbidden(message: String) -> ErrorObject {
    ErrorObject::new(ErrorCode::Forbidden, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_without_roles_can_be_called_by_no_caller() {
        let caller = Caller::with_all_rights(None);
        let refusal = caller
            .check_roles(&[], "urn:cline:forrst:fn:new")
            .unwrap_err();
        assert_eq!(refusal.code, ErrorCode::Forbidden);
    }
}
