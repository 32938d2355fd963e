//! Who may do what, by the roles of a token.

/// Roles of Keystone that mean something here.
const ADMIN: &str = "kubernetes_admin";
const MEMBER: &str = "kubernetes_member";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    ListClusters,
    ShowCluster,
    CreateCluster,
    UpdateCluster,
    TerminateCluster,
    GetCredentials,
    GetInfo,
    GetEvents,
    GetOpenStackMetadata,
}

/// Members look; administrators also change, and get the credentials of an administrator.
pub fn is_allowed(operation: Operation, roles: &[String]) -> bool {
    let has = |role: &str| roles.iter().any(|own| own == role);
    match operation {
        Operation::ListClusters
        | Operation::ShowCluster
        | Operation::GetInfo
        | Operation::GetEvents
        | Operation::GetOpenStackMetadata => has(ADMIN) || has(MEMBER),
        Operation::CreateCluster
        | Operation::UpdateCluster
        | Operation::TerminateCluster
        | Operation::GetCredentials => has(ADMIN),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_lists_and_does_not_create() {
        let roles = |role: &str| vec![role.to_owned()];
        for (operation, member) in [
            (Operation::ListClusters, true),
            (Operation::ShowCluster, true),
            (Operation::GetInfo, true),
            (Operation::GetEvents, true),
            (Operation::GetOpenStackMetadata, true),
            (Operation::CreateCluster, false),
            (Operation::UpdateCluster, false),
            (Operation::TerminateCluster, false),
            (Operation::GetCredentials, false),
        ] {
            assert_eq!(is_allowed(operation, &roles(MEMBER)), member, "{operation:?}");
            assert!(is_allowed(operation, &roles(ADMIN)), "{operation:?}");
            assert!(!is_allowed(operation, &roles("admin")), "{operation:?}: a role of the cloud is none of Klusters");
        }
    }
}
