//! Texts of inputs that many templates read: each is sent to a renderer's process once, under a number, and decoded there once.
//!
//! A text is known by its address, which no other text has while it is held here: digests could be made to collide. Both sides are bounded by what the server sends
//! ([`MAX_SHARED`]); when that is exceeded it tells the process to forget all of them.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
    io,
    sync::Arc,
};

use mainstay_controllers::InputText;
use mainstay_templates::Input;

use super::frames::{JobHeader, JobInput, SentText, encode_job};

/// How many bytes of them a process has at most; decoded they take about eight times as much.
const MAX_SHARED: usize = 4 << 20;

/// What a process was sent, as the server knows it.
#[derive(Default)]
pub struct SentTexts {
    known: HashMap<usize, (u64, Arc<str>)>,
    bytes: usize,
    next: u64,
}

/// What a text is known by while it is held.
fn address(text: &Arc<str>) -> usize {
    text.as_ptr().addr()
}

impl SentTexts {
    /// The frame of a job, with the texts that the process does not know yet.
    pub fn encode_job(&mut self, template: &str, inputs: &BTreeMap<String, InputText>) -> io::Result<Vec<u8>> {
        let shared = inputs.values().flat_map(InputText::shared_texts);
        let new = shared.filter(|text| !self.known.contains_key(&address(text))).map(|text| text.len());
        let forget = self.bytes + new.sum::<usize>() > MAX_SHARED;
        if forget {
            self.known.clear();
            self.bytes = 0;
        }
        let (mut header, mut texts) = (Vec::new(), Vec::new());
        for (name, input) in inputs {
            let (is_list, all): (bool, &[Arc<str>]) = match input {
                InputText::Own(text) | InputText::Shared(text) => (false, std::slice::from_ref(text)),
                InputText::List(texts) => (true, texts),
            };
            let mut sent = Vec::with_capacity(all.len());
            for text in all {
                let reference = match input {
                    InputText::Own(text) => SentText { number: None, length: Some(text.len()) },
                    InputText::Shared(_) | InputText::List(_) => self.refer_to(text),
                };
                texts.extend(reference.length.map(|_| &**text));
                sent.push(reference);
            }
            header.push(JobInput { name: Cow::Borrowed(name), is_list, texts: sent });
        }
        encode_job(&JobHeader { template: Cow::Borrowed(template), inputs: header, forget }, &texts)
    }

    fn refer_to(&mut self, text: &Arc<str>) -> SentText {
        if let Some((number, _)) = self.known.get(&address(text)) {
            return SentText { number: Some(*number), length: None };
        }
        let length = Some(text.len());
        if self.bytes + text.len() > MAX_SHARED {
            return SentText { number: None, length };
        }
        self.next += 1;
        self.bytes += text.len();
        self.known.insert(address(text), (self.next, text.clone()));
        SentText { number: Some(self.next), length }
    }
}

/// What a process knows, decoded.
#[derive(Default)]
pub struct DecodedTexts(HashMap<u64, Input>);

impl DecodedTexts {
    /// The inputs of a job. Those that are shared are known from now on.
    pub fn decode<'h>(&mut self, header: &'h JobHeader<'_>, mut sent: &[u8]) -> io::Result<BTreeMap<&'h str, Input>> {
        if header.forget {
            self.0.clear();
        }
        let mut inputs = BTreeMap::new();
        for input in &header.inputs {
            let mut values = Vec::with_capacity(input.texts.len());
            for text in &input.texts {
                let value = match (text.length, text.number) {
                    (Some(length), number) => {
                        let cut_off = || io::Error::other("the inputs are cut off");
                        let (text, rest) = sent.split_at_checked(length).ok_or_else(cut_off)?;
                        sent = rest;
                        let value = Input::from_json(text)?;
                        self.0.extend(number.map(|number| (number, value.clone())));
                        value
                    }
                    (None, Some(number)) => {
                        let known = self.0.get(&number).cloned();
                        known.ok_or_else(|| io::Error::other("a text was never sent"))?
                    }
                    (None, None) => return Err(io::Error::other("a text has neither number nor length")),
                };
                values.push(value);
            }
            let value = if input.is_list { Some(Input::list(values)) } else { values.pop() };
            let value = value.ok_or_else(|| io::Error::other("an input has no text"))?;
            inputs.insert(&*input.name, value);
        }
        Ok(inputs)
    }
}

#[cfg(test)]
mod tests {
    use mainstay_templates::render_inputs;
    use serde_json::json;

    use super::*;
    use crate::template_renderer::frames::decode_job;

    /// What a process renders of a job, and how many bytes of texts it was sent.
    fn run(sent: &mut SentTexts, decoded: &mut DecodedTexts, inputs: &[(&str, InputText)]) -> (String, usize) {
        let inputs = inputs.iter().map(|(name, input)| ((*name).to_owned(), input.clone())).collect();
        let frame = sent.encode_job("{{ own }} {{ one.a }} {{ all|tojson }}", &inputs).unwrap();
        let (header, texts) = decode_job(&frame[4..]).unwrap();
        let inputs = decoded.decode(&header, texts).unwrap();
        (render_inputs(&header.template, inputs.into_iter()).unwrap_or_default(), texts.len())
    }

    #[test]
    fn what_is_shared_is_sent_once_and_what_is_not_never_stays() {
        let (mut sent, mut decoded) = (SentTexts::default(), DecodedTexts::default());
        let texts: [Arc<str>; 2] = [r#"{"a":1}"#.into(), "[2]".into()];
        let inputs = [
            ("own", InputText::own(&json!("secret"))),
            ("one", InputText::Shared(texts[0].clone())),
            ("all", InputText::List(texts.to_vec())),
        ];
        let expected = r#"secret 1 [{"a": 1}, [2]]"#.to_owned();
        assert_eq!(run(&mut sent, &mut decoded, &inputs), (expected.clone(), 8 + 7 + 3));
        assert_eq!(run(&mut sent, &mut decoded, &inputs), (expected, 8));
        assert!(!format!("{:?}", decoded.0).contains("secret"));
        assert_eq!((decoded.0.len(), sent.known.len()), (2, 2));
        let other: Arc<str> = r#"{"a":1}"#.into();
        assert_eq!(run(&mut sent, &mut decoded, &[("one", InputText::Shared(other))]).1, 7, "equal, but another text");
    }

    #[test]
    fn a_process_forgets_when_it_was_sent_too_much() {
        let (mut sent, mut decoded) = (SentTexts::default(), DecodedTexts::default());
        let text = |length: usize| InputText::Shared(json!("x".repeat(length - 2)).to_string().into());
        for _ in 0..10 {
            let (_, bytes) = run(&mut sent, &mut decoded, &[("a", text(MAX_SHARED / 3))]);
            assert_eq!(bytes, MAX_SHARED / 3);
            assert!(decoded.0.len() <= 3 && sent.bytes <= MAX_SHARED);
        }
        let large = text(MAX_SHARED + 1);
        for _ in 0..2 {
            assert_eq!(run(&mut sent, &mut decoded, &[("a", large.clone())]).1, MAX_SHARED + 1, "never kept");
        }
        assert_eq!(decoded.0.len(), 0);
    }

    #[test]
    fn jobs_that_refer_to_nothing_are_errors() {
        let take = |texts: SentText, sent: &[u8]| {
            let input = JobInput { name: "a".into(), is_list: false, texts: vec![texts] };
            let header = JobHeader { template: "t".into(), inputs: vec![input], forget: false };
            DecodedTexts::default().decode(&header, sent).is_err()
        };
        assert!(take(SentText { number: Some(1), length: None }, b""));
        assert!(take(SentText { number: None, length: None }, b""));
        assert!(take(SentText { number: None, length: Some(3) }, b"1"));
        assert!(!take(SentText { number: None, length: Some(1) }, b"1"));
    }
}
