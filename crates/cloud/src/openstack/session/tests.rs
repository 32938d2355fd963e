use super::*;

#[test]
fn pages_are_followed_by_every_services_links() {
    let marker = Some(vec![("limit".to_owned(), "1".to_owned()), ("marker".to_owned(), "a b".to_owned())]);
    let next = |host: &str| format!("{host}/v2/things?limit=1&marker=a%20b");
    let links = json!([{"rel": "self", "href": "x"}, {"rel": "next", "href": next("http://elsewhere")}]);
    assert_eq!(next_page(&json!({"servers": [], "servers_links": links}), "servers"), marker);
    assert_eq!(next_page(&json!({"images": [], "next": next("")}), "images"), marker);
    assert_eq!(next_page(&json!({"users": [], "links": {"next": next("http://k"), "self": "x"}}), "users"), marker);
    assert_eq!(next_page(&json!({"users": [], "links": {"next": null}}), "users"), None);
    assert_eq!(next_page(&json!({"ports": []}), "ports"), None);
}

#[test]
fn logins_have_the_shape_that_keystone_wants() {
    let name = |text: &str| Identifier::Name(text.into());
    let password = Credential::Password {
        user: name("u"),
        user_domain: Identifier::Id("d".into()),
        password: SecretText::new("p"),
    };
    let scope = Scope::Project { project: name("x"), domain: name("D") };
    assert_eq!(
        login_body(&password, &scope),
        json!({"auth": {
            "identity": {"methods": ["password"],
                         "password": {"user": {"name": "u", "domain": {"id": "d"}, "password": "p"}}},
            "scope": {"project": {"name": "x", "domain": {"name": "D"}}},
        }})
    );
    let secret = SecretText::new("s");
    let credential = Credential::ApplicationCredential { credential: Identifier::Id("i".into()), user: None, secret };
    assert_eq!(
        login_body(&credential, &Scope::OfCredential),
        json!({"auth": {"identity": {"methods": ["application_credential"],
                                     "application_credential": {"id": "i", "secret": "s"}}}})
    );
    let token = Credential::Token { token: SecretText::new("t") };
    let scope = Scope::Project { project: Identifier::Id("p".into()), domain: name("D") };
    assert_eq!(
        login_body(&token, &scope),
        json!({"auth": {"identity": {"methods": ["token"], "token": {"id": "t"}}, "scope": {"project": {"id": "p"}}}})
    );
}
