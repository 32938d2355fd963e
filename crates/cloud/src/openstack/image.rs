//! Glance: images.

use serde::Deserialize;

use super::{CloudError, Service, Session, session::Request};

#[derive(Clone, Debug)]
pub struct ImageClient(Session);

impl Session {
    pub fn image(&self) -> ImageClient {
        ImageClient(self.clone())
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Image {
    pub id: String,
    pub name: Option<String>,
    /// `active` if servers can be made from it.
    pub status: String,
    pub min_disk: u64,
    pub min_ram: u64,
    pub visibility: String,
    /// A property that whoever made the image may have set: `flatcar`, `debian`…
    pub os_distro: Option<String>,
}

impl ImageClient {
    /// All images that the project can see, or those of this name.
    pub async fn list_images(&self, name: Option<&str>) -> Result<Vec<Image>, CloudError> {
        let mut request = Request::get(Service::Image, "list images", "/images");
        if let Some(name) = name {
            request = request.query("name", name);
        }
        self.0.list(request, "images").await
    }

    pub async fn show_image(&self, id: &str) -> Result<Option<Image>, CloudError> {
        self.0.call_optional(Request::get(Service::Image, "show image", format!("/images/{id}"))).await
    }
}
