//! `mainstay cloud debris`: lists what exists in the cloud and belongs to nothing here, and removes it.

use std::time::Duration;

use anyhow::Context;
use jiff::{SignedDuration, Timestamp};
use mainstay_cloud::{
    context::read_cluster_id,
    debris::{DebrisItem, DebrisReason, delete_debris, find_debris},
};

use super::CloudCommandOptions;
use crate::{exit::Exit, terminal::printable};

/// So long the cloud may take to show that what was deleted is gone.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_secs(1);

pub async fn run(options: &CloudCommandOptions, delete: bool) -> Result<(), Exit> {
    let session = options.session()?;
    let client = options.connect().await?;
    let cluster = read_cluster_id(&client).await.context("ask which cluster this is")?;
    let find = async || find_debris(&client, &session, &cluster).await.context("look for debris");
    let debris = find().await?;
    print(options, &debris);
    if !delete || debris.is_empty() {
        return if debris.is_empty() { Ok(()) } else { Err(Exit::Code(1)) };
    }
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let mut left = debris;
    loop {
        let mut refusal = None;
        for item in &left {
            if let Err(error) = delete_debris(&session, &item.found).await {
                refusal = Some(anyhow::Error::new(error));
            }
        }
        left = find().await?;
        if left.is_empty() {
            if !options.json {
                println!("Deleted all of it.");
            }
            return Ok(());
        }
        if tokio::time::Instant::now() >= deadline {
            eprintln!("mainstay: {} of these remain in the cloud", left.len());
            return Err(refusal.map_or(Exit::Code(1), Exit::Refused));
        }
        tokio::time::sleep(POLL).await;
    }
}

fn print(options: &CloudCommandOptions, debris: &[DebrisItem]) {
    if options.json {
        println!("{}", serde_json::to_string(debris).unwrap_or_default());
    } else if debris.is_empty() {
        println!("Nothing in the cloud with this cluster's tags belongs to nothing here.");
    } else {
        rows(debris, Timestamp::now()).iter().for_each(|row| println!("{row}"));
    }
}

/// A table: what, for how long, what it is called, and why it belongs to nothing.
fn rows(debris: &[DebrisItem], now: Timestamp) -> Vec<String> {
    let header = ["KIND", "COST", "AGE", "STATUS", "ID", "NAME", "WHY"].map(str::to_owned);
    let cells = debris.iter().map(|item| {
        let found = &item.found;
        let age = found.created.map_or_else(|| "unknown".to_owned(), |created| age(now.duration_since(created)));
        let why = match (item.reason, &item.owner) {
            (DebrisReason::NotInLedger, _) => "no entry of the ledger has its tag".to_owned(),
            (DebrisReason::Duplicate, _) => "another with the same tag is the one in use".to_owned(),
            (DebrisReason::OwnerGone, Some(owner)) => {
                format!("{} {}/{} is gone", owner.kind, owner.namespace, owner.name)
            }
            (DebrisReason::OwnerGone, None) => "its owner is gone".to_owned(),
        };
        let cost = if item.bears_cost { "yes" } else { "no" }.to_owned();
        [format!("{:?}", found.resource), cost, age, found.status.clone(), found.id.clone(), found.name.clone(), why]
    });
    let table: Vec<_> = std::iter::once(header).chain(cells).collect();
    let width = |column: usize| table.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..7).map(width).collect();
    let line = |row: &[String; 7]| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{:<width$}", printable(cell)));
        cells.collect::<Vec<_>>().join("   ").trim_end().to_owned()
    };
    table.iter().map(line).collect()
}

fn age(age: SignedDuration) -> String {
    let seconds = age.as_secs().max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86400),
    }
}

#[cfg(test)]
mod tests {
    use mainstay_api::cloud::cloud_resource::ResourceType;
    use mainstay_cloud::debris::TaggedResource;

    use super::*;

    #[test]
    fn debris_is_a_table_with_age_and_reason() {
        let found = TaggedResource {
            resource: ResourceType::Volume,
            id: "v1".into(),
            name: "pvc-1".into(),
            tag: "t".into(),
            status: "available".into(),
            created: "2026-01-01T00:00:00Z".parse().ok(),
        };
        let item = DebrisItem { found, reason: DebrisReason::NotInLedger, bears_cost: true, owner: None };
        let rows = rows(&[item], "2026-01-04T00:00:00Z".parse().unwrap());
        assert_eq!(
            rows[0].split_whitespace().collect::<Vec<_>>(),
            ["KIND", "COST", "AGE", "STATUS", "ID", "NAME", "WHY"]
        );
        assert_eq!(rows[1], "Volume   yes    3d    available   v1   pvc-1   no entry of the ledger has its tag");
    }

    #[test]
    fn ages_have_one_unit() {
        let shown = [5, 130, 7300, 200_000, -3].map(|seconds| age(SignedDuration::from_secs(seconds)));
        assert_eq!(shown, ["5s", "2m", "2h", "2d", "0s"]);
    }
}
