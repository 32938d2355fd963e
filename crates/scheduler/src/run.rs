//! Drives [`State`]: brings it news, does what it says.
//!
//! One task owns the state, so there is nothing to lock. Followers decode beside it; work is done beside it and what
//! became of it comes back as news. It wakes for news and for the next thing that time brings, and for nothing else.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use kube::{
    Api, Client,
    api::{DeleteParams, Preconditions},
};
use mainstay_api::offer::Offer;
use serde::de::DeserializeOwned;
use tokio::{
    sync::{
        mpsc::{self, UnboundedSender},
        watch,
    },
    time::{Instant, sleep, sleep_until},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    bind::Binder,
    events::Events,
    follow::{Follower, Relist, Seen},
    handle::Handle,
    metrics::Metrics,
    preempt::Preemptor,
    say::Speaker,
    settings::Settings,
    state::{News, State, Work},
};

/// Most news taken in before time is looked at again.
const AT_ONCE: usize = 4_096;

/// Places pods until asked to stop, and returns when everything begun has ended.
pub async fn run(client: Client, settings: Settings, metrics: Metrics, handle: Handle, stop: CancellationToken) {
    let (news, mut heard) = mpsc::unbounded_channel();
    let (relist, relisting) = watch::channel(0);
    let tasks = TaskTracker::new();
    let follow = Following { client: client.clone(), news: news.clone(), relisting, tasks: &tasks, stop: stop.clone() };
    follow.start("/api/v1/pods", News::Pods);
    follow.start("/api/v1/nodes", News::Nodes);
    follow.start("/apis/mainstay.dev/v1/offers", News::Offers);
    follow.start("/apis/policy/v1/poddisruptionbudgets", News::Budgets);
    follow.start("/api/v1/namespaces", News::Namespaces);
    follow.start("/api/v1/persistentvolumeclaims", News::Claims);
    follow.start("/api/v1/persistentvolumes", News::Volumes);
    follow.start("/apis/storage.k8s.io/v1/storageclasses", News::Classes);
    let hands = Arc::new(Hands::new(client));
    let (_seat, mut asked) = handle.sit();
    let mut state = State::new(settings, metrics, Instant::now().into_std());
    let mut buffer = Vec::new();
    loop {
        let now = Instant::now();
        for work in state.turn(now.into_std()) {
            match work {
                Work::Relist { round } => {
                    relist.send_replace(round);
                }
                work => {
                    let (hands, news) = (hands.clone(), news.clone());
                    tasks.spawn(async move { hands.work(work, &news).await });
                }
            }
        }
        let next = state.next(Instant::now().into_std()).map(Instant::from_std);
        let alarm = async {
            match next {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            Some(asked) = asked.recv() => {
                let reply = state.answer(asked.ask, Instant::now().into_std(), Timestamp::now());
                let _ = asked.answer.send(reply);
            }
            count = heard.recv_many(&mut buffer, AT_ONCE) => {
                if count > 0 && settings.collect > Duration::ZERO {
                    sleep(settings.collect).await;
                }
                let now = Instant::now().into_std();
                buffer.drain(..).for_each(|news| state.hear(news, now));
                while let Ok(news) = heard.try_recv() {
                    state.hear(news, now);
                }
            }
            () = alarm => {}
        }
    }
    tasks.close();
    tasks.wait().await;
}

struct Following<'a> {
    client: Client,
    news: UnboundedSender<News>,
    relisting: Relist,
    tasks: &'a TaskTracker,
    stop: CancellationToken,
}

impl Following<'_> {
    fn start<T: DeserializeOwned + Send + 'static>(&self, path: &'static str, wrap: fn(Seen<T>) -> News) {
        let news = self.news.clone();
        let tell = move |seen| {
            let _ = news.send(wrap(seen));
        };
        let follower = Follower::new(self.client.clone(), path, self.relisting.clone(), tell);
        self.tasks.spawn(follower.run(self.stop.clone()));
    }
}

/// Does what the state says.
struct Hands {
    binder: Binder,
    speaker: Speaker,
    preemptor: Preemptor,
    events: Events,
    offers: Api<Offer>,
}

impl Hands {
    fn new(client: Client) -> Self {
        let events = Events::new(client.clone());
        Self {
            binder: Binder::new(client.clone(), events.clone()),
            speaker: Speaker::new(client.clone(), events.clone()),
            preemptor: Preemptor::new(client.clone(), events.clone()),
            events,
            offers: Api::all(client),
        }
    }

    async fn work(&self, work: Work, news: &UnboundedSender<News>) {
        let became = match work {
            Work::Bind(orders) => {
                let begun = Instant::now();
                let answers = self.binder.bind(&orders).await;
                News::Bound { orders, answers, took: begun.elapsed() }
            }
            Work::Evict(eviction) => {
                let done = self.preemptor.evict(&eviction).await;
                News::Evicted { eviction, done }
            }
            Work::Say(statement) => {
                let done = self.speaker.write(&statement).await;
                News::Said { statement, done }
            }
            Work::Tell(note) => return self.events.tell(&note).await,
            Work::Renounce { pod, uid } => return self.preemptor.renounce(&pod, &uid).await,
            Work::TearUp { machine, version } => return self.tear_up(&machine, version).await,
            Work::Relist { .. } => return,
        };
        let _ = news.send(became); // nobody listens once we stop
    }

    /// Unless it has been renewed meanwhile.
    async fn tear_up(&self, machine: &str, version: u64) {
        let only = Preconditions { uid: None, resource_version: Some(version.to_string()) };
        match self.offers.delete(machine, &DeleteParams::default().preconditions(only)).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
            Err(error) => tracing::debug!(machine, %error, "cannot delete an offer"),
        }
    }
}
