//! A folder has one server. The next one can have it as soon as that one is gone, however it went.

use std::time::Duration;

use tokio::time::timeout;

use crate::crash::server::Place;
use forrst_testkit::Lock;

#[tokio::test(flavor = "multi_thread")]
async fn a_second_server_is_told_who_has_the_folder() {
    let place = Place::new("full");
    let first = place.start().await;
    let lock = Lock::global("k");
    let request = lock.acquire("a", Duration::from_secs(3600));
    let mut connection = first.connect().await;
    let answer = connection.call(&request).await.unwrap();
    let held = answer.granted().unwrap();

    let mut second = place.command();
    let second = second.output();
    let second = timeout(Duration::from_secs(30), second).await;
    let second = second.expect("it ends by itself").unwrap();
    let said = String::from_utf8_lossy(&second.stderr);
    assert_eq!(second.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("pid {})", first.pid())), "{said}");
    assert!(
        said.contains(&place.store().display().to_string()),
        "{said}"
    );

    // The first one has not noticed.
    let status = connection.call(&lock.status()).await.unwrap();
    assert_eq!(status.holder().as_ref(), Some(&held));

    first.kill().await;
    let third = place.start().await;
    let status = third.connect().await.call(&lock.status()).await.unwrap();
    assert_eq!(status.holder(), Some(held));
}
