//! What a renderer of templates is sent and answers: frames, each a length and so many bytes. A reply is JSON. A job is a header in JSON, preceded by its length and
//! followed by the texts of its inputs as they are, so that a text is written once however many templates read it.

use std::{borrow::Cow, io};

use serde::{Deserialize, Serialize};

/// No job and no reply is larger.
const LARGEST_FRAME: u32 = 128 << 20;

#[derive(Serialize, Deserialize)]
pub struct JobHeader<'j> {
    pub template: Cow<'j, str>,
    pub inputs: Vec<JobInput<'j>>,
    /// What was sent under numbers before this job counts no more.
    pub forget: bool,
}

#[derive(Serialize, Deserialize)]
pub struct JobInput<'j> {
    pub name: Cow<'j, str>,
    /// The value is the list of these texts; otherwise there is one.
    pub is_list: bool,
    pub texts: Vec<SentText>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
pub struct SentText {
    /// What it is known by from now on.
    pub number: Option<u64>,
    /// How many of the bytes after the header it is; nothing if it was sent before.
    pub length: Option<usize>,
}

/// The header of a job, and the texts after it.
pub fn decode_job(job: &[u8]) -> io::Result<(JobHeader<'static>, &[u8])> {
    let cut_off = || io::Error::other("a job is cut off");
    let (length, rest) = job.split_first_chunk::<4>().ok_or_else(cut_off)?;
    let (header, texts) = rest.split_at_checked(frame_length(*length)?).ok_or_else(cut_off)?;
    Ok((serde_json::from_slice(header)?, texts))
}

/// The frame of a job.
pub fn encode_job(header: &JobHeader<'_>, texts: &[&str]) -> io::Result<Vec<u8>> {
    let mut header = frame(header)?;
    let length: usize = header.len() + texts.iter().map(|text| text.len()).sum::<usize>();
    let mut bytes = Vec::with_capacity(4 + length);
    bytes.extend(length_bytes(length)?);
    bytes.append(&mut header);
    texts.iter().for_each(|text| bytes.extend(text.as_bytes()));
    Ok(bytes)
}

pub fn frame(content: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, content)?;
    let length = length_bytes(bytes.len() - 4)?;
    bytes[..4].copy_from_slice(&length);
    Ok(bytes)
}

pub fn frame_length(bytes: [u8; 4]) -> io::Result<usize> {
    let length = u32::from_be_bytes(bytes);
    if length > LARGEST_FRAME {
        return Err(io::Error::other("a frame is too large"));
    }
    usize::try_from(length).map_err(io::Error::other)
}

fn length_bytes(length: usize) -> io::Result<[u8; 4]> {
    let length = u32::try_from(length).ok().filter(|length| *length <= LARGEST_FRAME);
    Ok(length.ok_or_else(|| io::Error::other("the inputs are too large"))?.to_be_bytes())
}
