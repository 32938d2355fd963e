use super::*;
use crate::{testing::until, wake::Wake};

fn manifest(name: &str, image: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  containers: [{{name: c, image: {image}}}]\n"
    )
}

struct Watched {
    directory: tempfile::TempDir,
    pods: Arc<Pods>,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Watched {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let pods = Arc::new(Pods::new(Wake::default()));
        let stop = CancellationToken::new();
        let (path, grace) = (directory.path().join("static"), Duration::from_secs(30));
        let mut watcher = Directory::new(path, "m1".into(), grace, pods.clone(), Arc::default());
        // Only what inotify reports is noticed.
        watcher.interval = Duration::from_secs(24 * 3600);
        let task = tokio::spawn(watcher.run(stop.clone()));
        Self { directory, pods, stop, task }
    }

    fn write(&self, file: &str, text: &str) {
        std::fs::create_dir_all(self.directory.path().join("static")).unwrap();
        std::fs::write(self.directory.path().join("static").join(file), text).unwrap();
    }

    /// Names and images.
    fn now(&self) -> Vec<(String, String)> {
        let mut all: Vec<_> = self
            .pods
            .all()
            .iter()
            .map(|wanted| {
                let image = wanted.pod.spec.as_ref().unwrap().containers[0].image.clone().unwrap();
                (wanted.pod.metadata.name.clone().unwrap(), image)
            })
            .collect();
        all.sort();
        all
    }

    async fn becomes(&self, wanted: &[(&str, &str)]) {
        let wanted: Vec<_> = wanted.iter().map(|(name, image)| (name.to_string(), image.to_string())).collect();
        until(&format!("the pods are {wanted:?}"), async || self.now() == wanted).await;
    }

    async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}

#[tokio::test]
async fn files_that_come_change_and_go_are_followed() {
    let watched = Watched::start();
    until("an absent directory is an empty one", async || watched.pods.synced_sources().borrow().file).await;
    watched.write("web.yaml", &manifest("web", "a"));
    watched.becomes(&[("web-m1", "a")]).await;
    watched.write("db.yaml", &manifest("db", "b"));
    watched.becomes(&[("db-m1", "b"), ("web-m1", "a")]).await;
    watched.write("web.yaml", &manifest("web", "c"));
    watched.becomes(&[("db-m1", "b"), ("web-m1", "c")]).await;
    std::fs::remove_file(watched.directory.path().join("static/db.yaml")).unwrap();
    watched.becomes(&[("web-m1", "c")]).await;
    // As editors and deployers do it: a new file in place of the old one.
    let temporary = watched.directory.path().join("static/.web.swp");
    std::fs::write(&temporary, manifest("web", "d")).unwrap();
    std::fs::rename(temporary, watched.directory.path().join("static/web.yaml")).unwrap();
    watched.becomes(&[("web-m1", "d")]).await;
    std::fs::remove_dir_all(watched.directory.path().join("static")).unwrap();
    watched.becomes(&[]).await;
    watched.write("web.yaml", &manifest("web", "e"));
    watched.becomes(&[("web-m1", "e")]).await;
    watched.stop().await;
}

#[tokio::test]
async fn a_mistake_in_one_file_concerns_no_other_and_stops_nothing() {
    let watched = Watched::start();
    watched.write("good.yaml", &manifest("good", "a"));
    watched.write("bad.yaml", "kind: [");
    watched.write("flawed.yaml", &manifest("flawed", "a"));
    watched.becomes(&[("flawed-m1", "a"), ("good-m1", "a")]).await;
    watched.write("flawed.yaml", &manifest("flawed", "a")[..40]);
    watched.write("good.yaml", &manifest("good", "b"));
    watched.becomes(&[("flawed-m1", "a"), ("good-m1", "b")]).await;
    watched.write("same.yaml", &manifest("good", "z"));
    watched.write("flawed.yaml", &manifest("flawed", "c"));
    watched.becomes(&[("flawed-m1", "c"), ("good-m1", "b")]).await;
    watched.stop().await;
}
