//! Prepares the volumes of pods as directories and mounts of this machine, and releases them.
//!
//! * [`layout`]: where everything lies
//! * [`content`]: files that come from the API's objects; [`atomic`]: how they are exchanged all at once
//! * [`empty_dir`], [`host_path`], [`claim`], [`nfs`]: the other kinds; [`local_path`]: directories made for claims
//! * [`cinder`]: disks that a cloud attaches to this machine for claims
//! * [`owner`]: `fsGroup`; [`subpath`]: a part of a volume, however its inside tries to lead outside
//! * [`table`]: what is mounted, and giving everything back without ever reaching through a mount
//!
//! A pod that reads versions of ConfigMaps and Secrets ([`mainstay_api::config_versions`]) gets those of all its volumes or of none: while one copy cannot
//! be read, the others are not exchanged either, and containers that are started meanwhile get the versions that the volumes show.
//!
//! What belongs to the machine (`hostPath`, claims) is only linked to from a pod's directory, never
//! mounted into it. Work on the disk happens on blocking threads, one at a time for each pod and
//! bounded in time: a source that hangs keeps its own pod waiting, with a message, and nobody else.

pub mod atomic;
pub mod cinder;
mod claim;
mod content;
mod empty_dir;
mod host_path;
pub mod layout;
pub mod local_path;
mod nfs;
mod owner;
pub mod subpath;
mod table;
#[cfg(test)]
pub(crate) mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::{ImageVolumeSource, Pod, Volume};
use mainstay_api::config_versions::ConfigVersions;
use mainstay_errors::error_chain;
use mainstay_files::{create_private_dir, remove_file_if_exists, remove_tree};
use mainstay_runtime::{PodUid, Runtime, images::VOLUME_PREFIX};
use parking_lot::Mutex;

use self::{
    atomic::Payload,
    cinder::{CinderDisks, ClaimGrowth, disk::Disk, in_use::VolumesInUse, report_growth},
    claim::ClaimSources,
    empty_dir::Medium,
    layout::Layout,
    nfs::Export,
    owner::Group,
};
use crate::{
    objects::{ObjectError, Objects},
    settings::Settings,
    spec::{machine::NodeFacts, pod_ref},
};

/// How long the disk may take.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Volumes {
    layout: Layout,
    objects: Arc<Objects>,
    machine: NodeFacts,
    /// Of volumes that are made for claims.
    local_path: PathBuf,
    disks: CinderDisks,
    /// Mounts images; without one there are no image volumes.
    runtime: Option<Arc<dyn Runtime>>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// What is in place, as of this process; saves looking at the disk whenever a pod is woken.
    in_place: BTreeMap<PodUid, BTreeMap<String, u64>>,
    /// Work on the disk that has not come back, at most one of each pod.
    busy: BTreeMap<PodUid, Arc<tokio::sync::Mutex<()>>>,
    /// The versions that volumes show, of pods that have any.
    versions: BTreeMap<PodUid, ConfigVersions>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("MountVolume.SetUp failed for volume {volume:?} : {why}")]
pub struct VolumeError {
    pub volume: String,
    pub why: String,
}

/// Why a pod's volumes are not all ready.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PrepareError {
    #[error(transparent)]
    Failed(#[from] VolumeError),
    /// Everything is in place but volumes that wait for something of the API: a claim that is not bound, a certificate that is
    /// not issued. The pod is woken when that changes.
    #[error(
        "Unable to attach or mount volumes: unmounted volumes=[{0}], unattached volumes=[], \
         failed to process volumes=[{0}]: {why}",
        .volumes.join(" ")
    )]
    Pending { volumes: Vec<String>, why: String },
}

impl PrepareError {
    /// The cause, without the volume's name.
    pub fn why(&self) -> &str {
        match self {
            Self::Failed(error) => &error.why,
            Self::Pending { why, .. } => why,
        }
    }
}

/// Where a container finds a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountSource {
    pub path: PathBuf,
    /// Whatever the mount says.
    pub read_only: bool,
}

/// One volume, with everything known that making it needs.
#[derive(Clone, Debug)]
struct VolumeTask {
    name: String,
    what: VolumePlan,
    group: Option<Group>,
    /// It shows a version of a ConfigMap or Secret, or did.
    is_versioned: bool,
}

#[derive(Clone, Debug)]
enum VolumePlan {
    Empty(Medium),
    /// Something of the machine's own; checked and made by its type.
    Host {
        path: PathBuf,
        kind: String,
    },
    /// An image's files, mounted by the runtime.
    Image {
        path: PathBuf,
    },
    Nfs(Export),
    /// A bound claim's directory.
    Claimed {
        path: PathBuf,
        own: bool,
    },
    /// A volume that a cloud attached to this machine.
    Disk(Disk),
    Files {
        payload: Payload,
        in_memory: bool,
    },
    /// The API cannot tell; good enough if it is there from before.
    Unknown {
        why: String,
    },
}

impl Volumes {
    pub fn new(settings: &Settings, objects: Arc<Objects>) -> Self {
        let layout = Layout::new(&settings.directory);
        let (machine, local_path) = (NodeFacts::this(settings), local_path::directory(settings));
        let disks = CinderDisks::new(settings, &objects);
        Self { layout, objects, machine, local_path, disks, runtime: None, state: Arc::default() }
    }

    /// Reports which volumes of a cloud are in use here.
    pub fn volumes_in_use(&self) -> Arc<VolumesInUse> {
        self.disks.in_use()
    }

    /// Image volumes are mounted by this runtime.
    pub fn with_images(self, runtime: Arc<dyn Runtime>) -> Self {
        Self { runtime: Some(runtime), ..self }
    }

    /// The pod's image volumes that are not in place yet: their images have to be there before they are prepared.
    pub fn missing_images<'a>(&self, pod: &'a Pod) -> Vec<(&'a str, &'a ImageVolumeSource)> {
        let uid = pod_ref(pod).uid;
        let state = self.state.lock();
        let in_place = |name: &str| state.in_place.get(&uid).is_some_and(|volumes| volumes.contains_key(name));
        let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        let images = volumes.filter_map(|volume| Some((volume.name.as_str(), volume.image.as_ref()?)));
        images.filter(|(name, _)| !in_place(name)).collect()
    }

    /// Makes every volume of the pod present and current. Harmless when repeated; called before the pod's
    /// first container and again whenever the pod is woken.
    pub async fn prepare(&self, pod: &Pod) -> Result<(), PrepareError> {
        let uid = pod_ref(pod).uid;
        let asked = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        let versions = ConfigVersions::from_annotations(&pod.metadata.annotations);
        let shown = self.state.lock().versions.get(&uid).cloned().unwrap_or_default();
        let planned = futures::future::join_all(asked.map(|volume| self.plan(pod, &versions, &shown, volume))).await;
        let (mut failed, mut tasks, mut pending) = (None, Vec::new(), Vec::<VolumeError>::new());
        let mut lacks_version = false;
        for plan in planned {
            match plan {
                Ok(task) => tasks.push(task),
                Err(PlanError::Failed { error, is_versioned }) => {
                    lacks_version |= is_versioned;
                    failed.get_or_insert(error);
                }
                Err(PlanError::Pending { error, is_versioned }) => {
                    lacks_version |= is_versioned;
                    pending.push(error);
                }
            }
        }
        // Without all versions, none is exchanged.
        let unknown = tasks.iter().find_map(VolumeTask::unknown_version);
        let is_whole = !lacks_version && unknown.is_none();
        if !is_whole {
            tasks.retain(|task| !task.is_versioned);
        }
        if let Some(unknown) = unknown.filter(|_| !self.state.lock().versions.contains_key(&uid)) {
            // Nor is it known which ones are shown.
            failed.get_or_insert(unknown);
        }
        let growths: Vec<(String, ClaimGrowth)> = tasks.iter().filter_map(VolumeTask::growth).collect();
        tasks.retain(|task| !self.state.lock().is_in_place(&uid, task));
        if let Some(first) = tasks.first().map(|task| task.name.clone()) {
            let (layout, state, own) = (self.layout.clone(), self.state.clone(), uid.clone());
            let disks = self.disks.clone();
            let made = self.on_disk(&uid, first, move || {
                let mut result = Ok(());
                for task in tasks {
                    match task.make(&layout, &disks, &own) {
                        Ok(()) => state.lock().record_in_place(&own, &task),
                        Err(why) => result = result.and(Err(VolumeError { volume: task.name, why })),
                    }
                }
                result
            });
            made.await?;
        }
        for (volume, growth) in growths {
            let reported = report_growth(&self.objects, &growth).await;
            reported.map_err(|why| VolumeError { volume, why: format!("cannot report its new size: {why}") })?;
        }
        if is_whole {
            self.record_versions(pod, &uid, versions);
        }
        if let Some(error) = failed {
            return Err(error.into());
        }
        match pending.first().map(|error| error.why.clone()) {
            Some(why) => Err(PrepareError::Pending { volumes: pending.into_iter().map(|e| e.volume).collect(), why }),
            None => Ok(()),
        }
    }

    /// The versions of ConfigMaps and Secrets that the pod's volumes show, and that its containers get.
    pub fn config_versions(&self, pod: &Pod) -> ConfigVersions {
        let shown = self.state.lock().versions.get(&pod_ref(pod).uid).cloned();
        shown.unwrap_or_else(|| ConfigVersions::from_annotations(&pod.metadata.annotations))
    }

    /// The versions of ConfigMaps and Secrets that the pod's volumes show, if any are known to.
    pub fn shown_versions(&self, pod: &PodUid) -> ConfigVersions {
        self.state.lock().versions.get(pod).cloned().unwrap_or_default()
    }

    /// All volumes show these versions now; those before are no longer followed.
    fn record_versions(&self, pod: &Pod, uid: &PodUid, versions: ConfigVersions) {
        let mut state = self.state.lock();
        let before = state.versions.remove(uid).unwrap_or_default();
        for (source, copy) in before.copies.iter().filter(|(source, copy)| versions.copies.get(source) != Some(copy)) {
            self.objects.forget_copy(uid, &pod_ref(pod).namespace, source.kind, copy);
        }
        if !versions.is_empty() {
            state.versions.insert(uid.clone(), versions);
        }
    }

    /// Unmounts and removes what `ready` made, from what is on disk alone. A mount that will not go away is an
    /// error, and nothing below it is touched.
    pub async fn release(&self, pod: &PodUid) -> Result<(), VolumeError> {
        {
            let mut state = self.state.lock();
            state.in_place.remove(pod);
            state.versions.remove(pod);
        }
        let directory = self.layout.pod(pod);
        let (records, own) = (self.disks.records().clone(), pod.clone());
        let released = self.on_disk(pod, pod.0.clone(), move || {
            release(&directory)?;
            let failed = |error: io::Error| VolumeError { volume: own.0.clone(), why: error.to_string() };
            records.release(&own).map(drop).map_err(failed)
        });
        released.await?;
        self.disks.in_use().write_soon();
        if let Some(runtime) = &self.runtime {
            let unmounted = runtime.images().unmount_volumes(&image_volume(pod, "")).await;
            unmounted.map_err(|error| VolumeError { volume: pod.0.clone(), why: error.to_string() })?;
        }
        self.state.lock().busy.remove(pod);
        Ok(())
    }

    /// Pods that have something on disk.
    pub fn pods_on_disk(&self) -> BTreeSet<PodUid> {
        let mut pods = self.layout.pods_on_disk();
        pods.extend(self.disks.records().pods());
        pods
    }

    /// Where containers find the volume, once it is ready.
    pub fn source(&self, pod: &Pod, name: &str) -> Result<MountSource, VolumeError> {
        let failed = |why: String| VolumeError { volume: name.to_owned(), why };
        let mut volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        let volume = volumes.find(|volume| volume.name == name);
        let volume = volume.ok_or_else(|| failed("the pod has no such volume".to_owned()))?;
        let path = self.layout.volume(&pod_ref(pod).uid, name);
        let path = match std::fs::read_link(&path) {
            Ok(target) => target,
            Err(_) if path.is_dir() => path,
            Err(_) => return Err(failed("it is not ready".to_owned())),
        };
        if path.metadata().is_ok_and(|meta| meta.file_type().is_block_device()) {
            return Err(failed("it is a block volume, which containers get by volumeDevices".to_owned()));
        }
        let claim = volume.persistent_volume_claim.as_ref();
        let read_only = content::is_content(volume)
            || volume.image.is_some()
            || claim.is_some_and(|claim| claim.read_only == Some(true));
        Ok(MountSource { path, read_only })
    }

    /// The device of a block volume, once it is ready.
    pub fn device(&self, pod: &Pod, name: &str) -> Result<PathBuf, VolumeError> {
        let failed = |why: &str| VolumeError { volume: name.to_owned(), why: why.to_owned() };
        let device =
            std::fs::read_link(self.layout.volume(&pod_ref(pod).uid, name)).map_err(|_| failed("it is not ready"))?;
        let is_device = device.metadata().is_ok_and(|meta| meta.file_type().is_block_device());
        if is_device { Ok(device) } else { Err(failed("it is no block volume, but a filesystem")) }
    }

    /// Binds a part of a volume to a path that stays what it is, and answers that path.
    pub async fn sub_path(
        &self,
        pod: &PodUid,
        container: &str,
        index: usize,
        place: subpath::SubPath,
    ) -> Result<PathBuf, VolumeError> {
        let target = self.layout.sub_path(pod, container, index);
        let volume = place.volume.display().to_string();
        let (name, bound) = (volume.clone(), target.clone());
        let work =
            move || subpath::bind(&place, &bound).map_err(|error| VolumeError { volume, why: error_chain(&error) });
        self.on_disk(pod, name, work).await?;
        Ok(target)
    }

    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// `versions` are those that the pod names, `shown` those that its volumes show.
    async fn plan(
        &self,
        pod: &Pod,
        versions: &ConfigVersions,
        shown: &ConfigVersions,
        volume: &Volume,
    ) -> Result<VolumeTask, PlanError> {
        let is_versioned = content::shows_version(volume, versions) || content::shows_version(volume, shown);
        let name = volume.name.clone();
        let group = owner::wanted_group(pod);
        let error = |why: String| VolumeError { volume: volume.name.clone(), why };
        let failed = |why: String| PlanError::Failed { error: error(why), is_versioned };
        let what = if let Some(source) = &volume.empty_dir {
            VolumePlan::Empty(empty_dir::medium(source, pod, &self.machine).map_err(failed)?)
        } else if let Some(source) = &volume.host_path {
            VolumePlan::Host { path: source.path.clone().into(), kind: source.type_.clone().unwrap_or_default() }
        } else if let Some(source) = &volume.image {
            VolumePlan::Image { path: self.mount_image(pod, volume, source).await.map_err(failed)? }
        } else if let Some(source) = &volume.nfs {
            let (server, path) = (source.server.clone(), source.path.clone());
            VolumePlan::Nfs(Export { server, path, read_only: source.read_only.unwrap_or_default() })
        } else {
            let found = if content::is_content(volume) {
                let in_memory = volume.config_map.is_none();
                let files = content::files(&self.objects, pod, versions, volume, &self.machine).await;
                files.map(|payload| VolumePlan::Files { payload, in_memory })
            } else if let Some(claim) = claim::name(pod, volume) {
                let is_in_place = self.layout.volume(&pod_ref(pod).uid, &volume.name).is_symlink();
                let sources = ClaimSources {
                    objects: &self.objects,
                    local_path: &self.local_path,
                    disks: &self.disks,
                    is_in_place,
                };
                claim::resolve(sources, pod, volume, &claim).await
            } else {
                Err(PlanFailure::Refused(unsupported(volume)))
            };
            match found {
                Ok(what) => what,
                Err(PlanFailure::Refused(why)) => return Err(failed(why)),
                Err(PlanFailure::Pending(why)) => {
                    return Err(PlanError::Pending { error: error(why), is_versioned });
                }
                Err(PlanFailure::Unreachable(why)) => VolumePlan::Unknown { why },
            }
        };
        Ok(VolumeTask { name, what, group, is_versioned })
    }

    /// Where the runtime has the image of a volume mounted; it was pulled before.
    async fn mount_image(&self, pod: &Pod, volume: &Volume, source: &ImageVolumeSource) -> Result<PathBuf, String> {
        let Some(runtime) = &self.runtime else { return Err("there is no runtime to mount images".to_owned()) };
        let reference = source.reference.as_deref().unwrap_or_default();
        let found = runtime.images().find(reference).await.map_err(|error| error.to_string())?;
        let image = found.ok_or_else(|| format!("image {reference:?} is not present"))?;
        let key = image_volume(&pod_ref(pod).uid, &volume.name);
        runtime.images().mount_volume(&image.id, &key).await.map_err(|error| error.to_string())
    }

    /// Runs work of one pod on a blocking thread. Work that hangs stays alone: the pod gets no second thread.
    async fn on_disk(
        &self,
        pod: &PodUid,
        volume: String,
        work: impl FnOnce() -> Result<(), VolumeError> + Send + 'static,
    ) -> Result<(), VolumeError> {
        let turn = self.state.lock().busy.entry(pod.clone()).or_default().clone();
        let Ok(turn) = tokio::time::timeout(PATIENCE, turn.lock_owned()).await else {
            return Err(VolumeError { volume, why: "an earlier attempt still waits for the disk".to_owned() });
        };
        let work = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            work()
        });
        match tokio::time::timeout(PATIENCE, work).await {
            Ok(Ok(result)) => result,
            Ok(Err(error)) => Err(VolumeError { volume, why: error.to_string() }),
            Err(_) => Err(VolumeError { volume, why: format!("the disk did not answer within {PATIENCE:?}") }),
        }
    }
}

enum PlanError {
    Failed {
        error: VolumeError,
        /// It would show a version of a ConfigMap or Secret.
        is_versioned: bool,
    },
    /// What it needs is on its way.
    Pending { error: VolumeError, is_versioned: bool },
}

/// Why a volume cannot be planned.
#[derive(Debug)]
enum PlanFailure {
    Refused(String),
    /// A claim is not bound yet, a certificate not issued.
    Pending(String),
    Unreachable(String),
}

impl PlanFailure {
    /// `what` in the words users know: `configmap "x"`.
    fn from_object_error(lack: ObjectError, what: impl FnOnce() -> String) -> Self {
        match lack {
            ObjectError::Missing => Self::Refused(format!("{} not found", what())),
            ObjectError::Unreachable(why) | ObjectError::Forbidden(why) => Self::Unreachable(why),
        }
    }
}

impl VolumeTask {
    fn make(&self, layout: &Layout, disks: &CinderDisks, pod: &PodUid) -> Result<(), String> {
        let (directory, made) = (layout.volume(pod, &self.name), layout.made(pod, &self.name));
        let text = |error: io::Error| error.to_string();
        match &self.what {
            VolumePlan::Empty(medium) => empty_dir::make(&directory, &made, medium, self.group.as_ref()).map_err(text),
            VolumePlan::Host { path, kind } => {
                if !(is_link_to(&directory, path) && path.exists()) {
                    host_path::check(path, kind)?;
                }
                link(path, &directory).map_err(text)
            }
            VolumePlan::Claimed { path, own } => {
                if !path.exists() {
                    return Err(format!("path {:?} does not exist", path.display()));
                }
                if let (Some(group), true, false) = (&self.group, *own, is_link_to(&directory, path)) {
                    owner::set_group(path, group, false).map_err(text)?;
                }
                link(path, &directory).map_err(text)
            }
            VolumePlan::Disk(disk) => {
                let lock = disks.records().lock(&disk.handle);
                let _held = lock.lock();
                let path = disk.set_up(self.group.as_ref())?;
                link(&path, &directory).map_err(text)
            }
            VolumePlan::Image { path } => link(path, &directory).map_err(text),
            VolumePlan::Nfs(export) => nfs::mount_export(export, &directory),
            VolumePlan::Files { payload, in_memory } => {
                empty_dir::prepare(&directory, *in_memory).map_err(text)?;
                atomic::write(&directory, payload, self.group.as_ref().map(|group| group.id)).map_err(text)
            }
            VolumePlan::Unknown { why } => {
                if directory.is_symlink() || directory.join(atomic::DATA).exists() {
                    Ok(())
                } else {
                    Err(why.clone())
                }
            }
        }
    }

    /// Why the version that the volume is to show cannot be read, if so.
    fn unknown_version(&self) -> Option<VolumeError> {
        match &self.what {
            VolumePlan::Unknown { why } if self.is_versioned => {
                Some(VolumeError { volume: self.name.clone(), why: why.clone() })
            }
            _ => None,
        }
    }

    /// The claim whose filesystem grows, if it does, by the name of the volume.
    fn growth(&self) -> Option<(String, ClaimGrowth)> {
        match &self.what {
            VolumePlan::Disk(disk) => Some((self.name.clone(), disk.growth.clone()?)),
            _ => None,
        }
    }

    /// Two tasks of the same print come to the same.
    fn fingerprint(&self) -> Option<u64> {
        match &self.what {
            VolumePlan::Files { payload, .. } => Some(payload.fingerprint()),
            VolumePlan::Empty(_) => Some(0),
            VolumePlan::Disk(disk) => Some(disk.fingerprint()),
            VolumePlan::Host { .. } | VolumePlan::Claimed { .. } | VolumePlan::Image { .. } | VolumePlan::Nfs(_) => {
                Some(1)
            }
            VolumePlan::Unknown { .. } => None,
        }
    }
}

impl State {
    fn is_in_place(&self, pod: &PodUid, task: &VolumeTask) -> bool {
        let held = self.in_place.get(pod).and_then(|volumes| volumes.get(&task.name));
        held.is_some() && (task.fingerprint().is_none() || held == task.fingerprint().as_ref())
    }

    fn record_in_place(&mut self, pod: &PodUid, task: &VolumeTask) {
        if let Some(print) = task.fingerprint() {
            self.in_place.entry(pod.clone()).or_default().insert(task.name.clone(), print);
        }
    }
}

/// For messages.
const SUPPORTED: &str = "configMap, downwardAPI, emptyDir, ephemeral, hostPath, image, nfs, persistentVolumeClaim, \
                         projected and secret";

/// How the runtime knows a pod's image volume.
fn image_volume(pod: &PodUid, volume: &str) -> String {
    format!("{VOLUME_PREFIX}{pod}-{volume}")
}

fn unsupported(volume: &Volume) -> String {
    // The one field beside `name` that is set.
    let kind = serde_json::to_value(volume)
        .ok()
        .and_then(|value| value.as_object().and_then(|fields| fields.keys().find(|field| *field != "name").cloned()));
    match kind {
        Some(kind) => format!("volumes of type {kind} are not supported; supported are {SUPPORTED}"),
        None => "the volume has no type".to_owned(),
    }
}

fn is_link_to(link: &Path, target: &Path) -> bool {
    std::fs::read_link(link).is_ok_and(|found| found == target)
}

/// Makes or changes a link, never leaving none.
fn link(target: &Path, link: &Path) -> io::Result<()> {
    if is_link_to(link, target) {
        return Ok(());
    }
    let parent = link.parent().unwrap_or(link);
    create_private_dir(parent)?;
    let mut temporary = link.as_os_str().to_owned();
    temporary.push(".new");
    remove_file_if_exists(Path::new(&temporary))?;
    std::os::unix::fs::symlink(target, &temporary)?;
    std::fs::rename(&temporary, link)
}

fn release(directory: &Path) -> Result<(), VolumeError> {
    let failed = |path: &Path, why: String| {
        let volume = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        VolumeError { volume, why }
    };
    let directory = match directory.canonicalize() {
        Ok(directory) => directory,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(directory, error.to_string())),
    };
    table::unmount_below(&directory).map_err(|stuck| {
        let why = format!("{} is still mounted: {}", stuck.path.display(), stuck.why);
        failed(&stuck.path, why)
    })?;
    remove_tree(&directory).map_err(|error| failed(&directory, error_chain(&error)))
}
