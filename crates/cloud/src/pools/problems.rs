//! Why a pool cannot have machines: the field that is wrong, or the quota and how much of it is missing.

use mainstay_api::cloud::node_pool::PoolSpec;

use super::user_data::UserDataFormat;
use crate::openstack::{
    CloudError,
    compute::{ComputeQuota, Flavor},
    image::Image,
};

/// One reason, as a condition and an event tell it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolProblem {
    pub reason: &'static str,
    /// `nodePools[small].flavor`.
    pub field: String,
    pub message: String,
}

impl PoolProblem {
    pub fn new(pool: &str, field: &str, reason: &'static str, message: impl Into<String>) -> Self {
        let field = if field.is_empty() { format!("nodePools[{pool}]") } else { format!("nodePools[{pool}].{field}") };
        Self { reason, field, message: message.into() }
    }

    /// The whole of it, for a condition.
    pub fn text(&self) -> String {
        format!("{}: {}", self.field, self.message)
    }
}

/// What the cloud has of what a pool names.
#[derive(Clone, Debug, Default)]
pub struct CloudOffers {
    pub flavors: Vec<Flavor>,
    /// Images with the pool's image as name or id.
    pub images: Vec<ImageOffer>,
    pub zones: Vec<String>,
    /// How many security groups have the Kluster's name of one.
    pub security_groups: usize,
    pub quota: ComputeQuota,
}

/// An image that is active.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageOffer {
    pub id: String,
    pub user_data: UserDataFormat,
}

impl From<Image> for ImageOffer {
    fn from(image: Image) -> Self {
        let (name, os_distro) = (image.name.unwrap_or_default(), image.os_distro.unwrap_or_default());
        Self { user_data: UserDataFormat::of_image(&name, &os_distro), id: image.id }
    }
}

/// The first problem of a pool that needs so many servers more; the flavor and the image if there is none.
pub fn check_pool(
    pool: &PoolSpec,
    security_group: &str,
    network_id: &str,
    offers: &CloudOffers,
    needed: usize,
) -> Result<(Flavor, ImageOffer), PoolProblem> {
    let problem = |field: &str, reason, message: String| Err(PoolProblem::new(&pool.name, field, reason, message));
    let Some(flavor) = offers.flavors.iter().find(|flavor| flavor.name == pool.flavor || flavor.id == pool.flavor)
    else {
        return problem("flavor", "FlavorNotFound", format!("the cloud has no flavor {:?}", pool.flavor));
    };
    let image = match offers.images.as_slice() {
        [image] => image.clone(),
        [] => return problem("image", "ImageNotFound", format!("the cloud has no active image {:?}", pool.image)),
        several => {
            let message = format!("the cloud has {} images {:?}: name one by its id", several.len(), pool.image);
            return problem("image", "ImageAmbiguous", message);
        }
    };
    if !pool.availability_zone.is_empty() && !offers.zones.contains(&pool.availability_zone) {
        let message =
            format!("the cloud has no availability zone {:?}, but {}", pool.availability_zone, offers.zones.join(", "));
        return problem("availabilityZone", "ZoneNotFound", message);
    }
    if network_id.is_empty() {
        return Err(PoolProblem {
            reason: "NetworkNotFound",
            field: "openstack.networkID".to_owned(),
            message: "the Kluster has no network yet".to_owned(),
        });
    }
    if offers.security_groups != 1 {
        let reason = if offers.security_groups == 0 { "SecurityGroupNotFound" } else { "SecurityGroupAmbiguous" };
        let message = format!(
            "the project has {} security groups {security_group:?}, and needs exactly one",
            offers.security_groups
        );
        return Err(PoolProblem { reason, field: "openstack.securityGroupName".to_owned(), message });
    }
    match find_missing_quota(&offers.quota, flavor, needed) {
        Some(message) => problem("size", "QuotaExceeded", message),
        None => Ok((flavor.clone(), image)),
    }
}

/// Which quota does not suffice for one server more, and how much is missing for all that are needed.
fn find_missing_quota(quota: &ComputeQuota, flavor: &Flavor, needed: usize) -> Option<String> {
    let needed = i64::try_from(needed).unwrap_or(i64::MAX);
    let amount = |each: u64| i64::try_from(each).unwrap_or(i64::MAX);
    let rows = [
        ("instances", "", quota.instances, 1),
        ("cores", "", quota.cores, amount(flavor.vcpus)),
        ("ram", " MB", quota.ram, amount(flavor.ram)),
    ];
    let missing: Vec<String> = rows
        .iter()
        // As long as there is room for one, one is created.
        .filter(|(_, _, usage, each)| needed > 0 && usage.missing_for(*each).is_some())
        .filter_map(|(name, unit, usage, each)| {
            let missing = usage.missing_for(each.saturating_mul(needed))?;
            Some(format!("quota {name}: {missing}{unit} missing ({} of {} in use)", usage.in_use, usage.limit))
        })
        .collect();
    (!missing.is_empty()).then(|| missing.join("; "))
}

/// What a refused create says about the pool; nothing if it may work next time.
pub fn judge_create_error(pool: &PoolSpec, error: &CloudError) -> Option<PoolProblem> {
    let message = error.message();
    if error.is_quota_exceeded() {
        return Some(PoolProblem::new(&pool.name, "size", "QuotaExceeded", message));
    }
    if error.status() != Some(400) && error.status() != Some(404) {
        return None;
    }
    let text = message.to_ascii_lowercase();
    let (field, reason) = if text.contains("flavor") {
        ("flavor", "FlavorNotUsable")
    } else if text.contains("image") || text.contains("disk is too small") {
        ("image", "ImageNotUsable")
    } else if text.contains("availability zone") {
        ("availabilityZone", "ZoneNotFound")
    } else if text.contains("user data") || text.contains("user_data") {
        ("labels", "UserDataTooLong")
    } else if text.contains("volume") {
        ("customRootDiskSize", "RootDiskNotUsable")
    } else {
        ("", "ServerRefused")
    };
    Some(PoolProblem::new(&pool.name, field, reason, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openstack::compute::QuotaUse;

    fn pool() -> PoolSpec {
        PoolSpec {
            name: "small".to_owned(),
            flavor: "m1.small".to_owned(),
            image: "tiny".to_owned(),
            size: 3,
            ..PoolSpec::default()
        }
    }

    fn offers() -> CloudOffers {
        let room = QuotaUse { limit: -1, ..QuotaUse::default() };
        CloudOffers {
            flavors: vec![Flavor { id: "2".to_owned(), name: "m1.small".to_owned(), vcpus: 2, ram: 2048, disk: 20 }],
            images: vec![ImageOffer { id: "i".to_owned(), user_data: UserDataFormat::CloudInit }],
            zones: vec!["nova".to_owned()],
            security_groups: 1,
            quota: ComputeQuota { instances: room, cores: room, ram: room },
        }
    }

    fn problem(pool: &PoolSpec, offers: &CloudOffers) -> (String, &'static str, String) {
        let problem = check_pool(pool, "default", "n", offers, 3).unwrap_err();
        (problem.field, problem.reason, problem.message)
    }

    #[test]
    fn what_does_not_exist_is_named_with_its_field() {
        assert_eq!(check_pool(&pool(), "default", "n", &offers(), 3).unwrap().1.id, "i");
        let flavor = PoolSpec { flavor: "huge".to_owned(), ..pool() };
        assert_eq!(problem(&flavor, &offers()).0, "nodePools[small].flavor");
        let none = CloudOffers { images: vec![], ..offers() };
        assert_eq!(
            problem(&pool(), &none),
            ("nodePools[small].image".to_owned(), "ImageNotFound", "the cloud has no active image \"tiny\"".to_owned())
        );
        let zone = PoolSpec { availability_zone: "mars".to_owned(), ..pool() };
        assert_eq!(problem(&zone, &offers()).0, "nodePools[small].availabilityZone");
        let twice = CloudOffers { security_groups: 2, ..offers() };
        assert_eq!(problem(&pool(), &twice).0, "openstack.securityGroupName");
        assert_eq!(check_pool(&pool(), "default", "", &offers(), 3).unwrap_err().field, "openstack.networkID");
    }

    #[test]
    fn a_quota_is_named_with_how_much_is_missing() {
        let quota = ComputeQuota {
            instances: QuotaUse { limit: 10, in_use: 9, reserved: 0 },
            cores: QuotaUse { limit: 20, in_use: 19, reserved: 0 },
            ram: QuotaUse { limit: 51_200, in_use: 50_000, reserved: 0 },
        };
        let (field, reason, message) = problem(&pool(), &CloudOffers { quota, ..offers() });
        assert_eq!((field.as_str(), reason), ("nodePools[small].size", "QuotaExceeded"));
        assert_eq!(
            message,
            "quota cores: 5 missing (19 of 20 in use); quota ram: 4944 MB missing (50000 of 51200 in use)"
        );
    }

    #[test]
    fn a_quota_with_room_for_one_is_no_problem_yet() {
        let quota = ComputeQuota { instances: QuotaUse { limit: 10, in_use: 9, reserved: 0 }, ..offers().quota };
        assert!(check_pool(&pool(), "default", "n", &CloudOffers { quota, ..offers() }, 3).is_ok());
    }
}
