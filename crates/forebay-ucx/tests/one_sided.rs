//! Reading and writing a peer's memory.

mod common;

use common::*;
use forebay_memory::FRAME_SIZE;
use forebay_ucx::{Data, Error, Message, Protocol, Registration, RemoteKey};

#[test]
fn bytes_are_fetched_and_stored_where_the_key_says_and_nowhere_else() {
    over_each_fabric(|context| async move {
        let pools = [pool(2), pool(8)];
        let [exposed, local] = pools.each_ref().map(|pool| Registration::whole(&context, pool).unwrap());
        let (server, client) = (Driven::new(&context), Driven::new(&context));
        let mut memory = exposed.expose(pools[0].try_alloc(FRAME_SIZE).unwrap()).unwrap();
        let bytes = pattern(3, FRAME_SIZE);
        memory.write(0, &bytes).unwrap();
        assert!(exposed.expose(pools[1].try_alloc(1).unwrap()).is_err());

        let (give, take) = tokio::sync::oneshot::channel();
        let give = std::cell::Cell::new(Some(give));
        let handler = move |message: Message<'_>| {
            let Data::Eager(key) = message.data else { panic!("a key is short") };
            give.take().unwrap().send(key.to_vec()).unwrap();
        };
        client.worker.on_message(REPLY, handler).unwrap();
        let listener = server.worker.listen(LOOPBACK).unwrap();
        let endpoint = client.worker.connect(listener.address(), None).unwrap();
        let accepted = listener.accept().await.accept().unwrap();
        let packed = bytes::Bytes::from(memory.key().unwrap());
        accepted.am_send(REPLY, b"", packed, None, Protocol::Eager).await.unwrap();
        let packed = take.await.unwrap();

        for cut in [0, 15, 16] {
            assert!(matches!(RemoteKey::unpack(&endpoint, &packed[..cut]), Err(Error::RemoteKey(_))));
        }
        let key = RemoteKey::unpack(&endpoint, &packed).unwrap();
        for (offset, length) in [(0, FRAME_SIZE), (4096, 4096), (FRAME_SIZE - 1, 1), (17, 100_000)] {
            let (got, landed) = key.get(offset as u64, pools[1].try_alloc(length).unwrap(), Some(&local)).await;
            assert_eq!(landed, Ok(length));
            assert!(got[0][..] == bytes[offset..offset + length], "{length} bytes at {offset}");
        }
        let (returned, outside) = key.get(1, pools[1].try_alloc(FRAME_SIZE).unwrap(), None).await;
        assert!(matches!(outside, Err(Error::OutOfBounds { .. })) && returned.len() == 1);
        drop(returned);

        let news = pattern(4, 1 << 20);
        for registration in [None, Some(&local)] {
            let mut span = pools[1].try_alloc(news.len()).unwrap();
            span.copy_from_slice(&news);
            key.put(1000, span.freeze(), registration).await.unwrap();
        }
        endpoint.flush().await.unwrap();
        let mut seen = vec![0; FRAME_SIZE];
        memory.read(0, &mut seen).unwrap();
        let mut expected = bytes.clone();
        expected[1000..1000 + news.len()].copy_from_slice(&news);
        assert!(seen == expected);
        assert!(memory.read(1, &mut seen).is_err());

        drop(key);
        endpoint.close(false).await;
        assert_eq!(pools[1].used(), 0);
        accepted.close(true).await;
        assert!(pools[0].used() > 0, "a peer may still hold the key");
        drop((memory, exposed, local, server, client, accepted, endpoint, listener, context));
        // The acceptors' and drivers' tasks let go of the workers when they run next.
        until("the context has ended, and its memory with it", || pools.iter().all(|pool| pool.used() == 0)).await;
    });
}
