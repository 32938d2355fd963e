//! The response to a request.

use serde_json::Value;

#[derive(Clone, Debug)]
pub struct HttpResponse {
    pub code: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl HttpResponse {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error} in {}: {}", self.code, self.text()))
    }

    /// The object answered, if the request was granted.
    #[track_caller]
    pub fn granted(&self) -> Value {
        assert!((200..300).contains(&self.code), "refused with {}: {}", self.code, self.text());
        self.json()
    }

    /// The `Status` answered: it must be a complete one, of this code and reason.
    #[track_caller]
    pub fn refused(&self, code: u16, reason: &str) -> Value {
        assert_eq!(self.code, code, "{}", self.text());
        let status = self.json();
        assert_eq!(
            (&status["kind"], &status["apiVersion"], &status["status"]),
            (&"Status".into(), &"v1".into(), &"Failure".into()),
            "{status}"
        );
        assert_eq!(status["reason"], reason, "{status}");
        assert_eq!(status["code"], code, "{status}");
        assert!(status["message"].as_str().is_some_and(|m| !m.is_empty()), "{status}");
        assert!(status["metadata"].is_object(), "{status}");
        status
    }

    /// The same, with this in its message.
    #[track_caller]
    pub fn refused_saying(&self, code: u16, reason: &str, words: &str) -> Value {
        let status = self.refused(code, reason);
        assert!(status["message"].as_str().unwrap_or_default().contains(words), "no {words:?} in {status}");
        status
    }

    /// The path of the first field complained about.
    #[track_caller]
    pub fn invalid_field(&self) -> String {
        let status = self.refused(422, "Invalid");
        status["details"]["causes"][0]["field"].as_str().unwrap_or_else(|| panic!("no cause in {status}")).to_owned()
    }
}
