//! A list and watch of the objects of one kind, as a stream of events.

use std::{
    marker::PhantomData,
    pin::Pin,
    task::{Context, Poll},
};

use futures::{
    Stream, StreamExt,
    stream::{self, BoxStream},
};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::list_watch::{AnyObject, ListWatch, WatchError, WatchOptions};

/// What happened. Between `Init` and `InitDone` every object of the list is delivered once; what is not among them is gone.
#[derive(Clone, Debug, PartialEq)]
pub enum Event<K> {
    Init,
    InitApply(K),
    InitDone,
    Apply(K),
    Delete(K),
}

/// Never ends: a failure is an item, after which it waits and goes on by itself. Cancelling `next` loses nothing.
pub struct Watch<K> {
    events: BoxStream<'static, Result<Event<AnyObject>, WatchError>>,
    kind: PhantomData<fn() -> K>,
}

impl<K: DeserializeOwned + Send + 'static> Watch<K> {
    /// Of the objects that an `Api` is about.
    pub fn new<A: kube::Resource>(api: Api<A>, options: WatchOptions) -> Self {
        let path = api.resource_url().to_owned();
        Self::of_path(api.into_client(), path, options)
    }

    /// Of the objects below a path: `/api/v1/pods`.
    pub fn of_path(client: Client, path: impl Into<String>, options: WatchOptions) -> Self {
        let list_watch = ListWatch::new(client, path.into(), options, decode::<K>);
        let events = stream::unfold(list_watch, |list_watch| async { Some(list_watch.next().await) }).boxed();
        Self { events, kind: PhantomData }
    }
}

impl<K: 'static> Stream for Watch<K> {
    type Item = Result<Event<K>, WatchError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.events.poll_next_unpin(context).map(|event| event.map(|event| event.map(Event::downcast)))
    }
}

fn decode<K: DeserializeOwned + Send + 'static>(object: &RawValue) -> Result<AnyObject, serde_json::Error> {
    Ok(Box::new(serde_json::from_str::<K>(object.get())?))
}

impl Event<AnyObject> {
    fn downcast<K: 'static>(self) -> Event<K> {
        let typed = |object: AnyObject| *object.downcast::<K>().expect("a watch decodes one kind");
        match self {
            Self::Init => Event::Init,
            Self::InitApply(object) => Event::InitApply(typed(object)),
            Self::InitDone => Event::InitDone,
            Self::Apply(object) => Event::Apply(typed(object)),
            Self::Delete(object) => Event::Delete(typed(object)),
        }
    }
}
