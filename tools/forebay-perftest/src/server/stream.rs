//! READ and WRITE over a plain socket: one thread, one request after the other.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use forebay_memory::FRAME_SIZE;

use crate::plan::{AREA_FRAMES, BLOCKS, OPERATION_DEADLINE};
use crate::server::service::Blocks;
use crate::wire::{Region, StreamRequest};

/// Serves the socket until it ends; why it had to. Between its tests a client is silent, for as long as its session lasts.
pub(super) fn serve(mut stream: TcpStream, blocks: &Blocks, delay: Duration) -> Result<(), String> {
    let prepared = stream
        .set_nonblocking(false)
        .and_then(|()| stream.set_nodelay(true))
        .and_then(|()| stream.set_write_timeout(Some(OPERATION_DEADLINE)));
    prepared.map_err(|error| error.to_string())?;
    let mut area = Vec::new();
    let mut header = [0; StreamRequest::LEN];
    loop {
        match stream.read_exact(&mut header) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error.to_string()),
        }
        let request = StreamRequest::decode(&header, BLOCKS as u32).ok_or("it sent a request that is none")?;
        answer(&mut stream, request, blocks, &mut area, delay).map_err(|error| error.to_string())?;
    }
}

fn answer(
    stream: &mut TcpStream,
    request: StreamRequest,
    blocks: &Blocks,
    area: &mut Vec<u8>,
    delay: Duration,
) -> io::Result<()> {
    let place = request.place;
    let own = |area: &mut Vec<u8>| {
        // Taken when it is needed: most connections only read.
        area.resize(AREA_FRAMES * FRAME_SIZE, 0);
        let start = place.frame as usize * FRAME_SIZE + place.offset as usize;
        start..start + place.length as usize
    };
    if request.writes {
        let range = own(area);
        stream.set_read_timeout(Some(OPERATION_DEADLINE))?;
        stream.read_exact(&mut area[range])?;
        stream.set_read_timeout(None)?;
    }
    if !delay.is_zero() {
        std::thread::sleep(delay);
    }
    match (request.writes, request.region) {
        (true, _) => stream.write_all(&[1]),
        (false, Region::Area) => {
            let range = own(area);
            stream.write_all(&area[range])
        }
        (false, Region::Blocks) => {
            let span = blocks.at(place).ok_or(io::ErrorKind::InvalidInput)?;
            stream.write_all(&span)
        }
    }
}
