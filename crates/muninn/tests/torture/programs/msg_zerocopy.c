// Sends pages over TCP by reference; the receiver reads late, when the frames of those pages would have
// been used for something else.
#include "torture.h"
#include <netinet/in.h>
#include <sys/socket.h>

enum { PIECE = 16 * PAGE, BYTES = 1024 * PAGE };

int main(void) {
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    int small = 65536, large = 16 * MIB, one = 1;
    MUST(setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &small, sizeof small) == 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    MUST(bind(listener, (struct sockaddr *)&address, length) == 0);
    MUST(listen(listener, 1) == 0);
    MUST(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
    int sender = socket(AF_INET, SOCK_STREAM, 0);
    if (setsockopt(sender, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one) != 0) {
        say("none: SO_ZEROCOPY: %s\n", strerror(errno));
        return 0;
    }
    if (setsockopt(sender, SOL_SOCKET, SO_SNDBUFFORCE, &large, sizeof large) != 0)
        MUST(setsockopt(sender, SOL_SOCKET, SO_SNDBUF, &large, sizeof large) == 0);
    MUST(connect(sender, (struct sockaddr *)&address, length) == 0);
    int receiver = accept(listener, NULL, NULL);
    MUST(receiver >= 0);

    unsigned char *at = take(BYTES), *back = take(BYTES);
    fill(at, BYTES, 1);
    size_t sent = 0;
    while (sent < BYTES) {
        ssize_t more = send(sender, at + sent, PIECE, MSG_ZEROCOPY | MSG_DONTWAIT);
        if (more < 0 && (errno == EAGAIN || errno == ENOBUFS)) break;
        MUST(more > 0);
        sent += more;
    }
    MUST(sent >= 32 * PAGE); // more than the receiver's buffer: the rest waits by reference
    push_out();
    push_out();
    for (size_t done = 0; done < sent;) {
        ssize_t more = recv(receiver, back + done, sent - done, 0);
        MUST(more > 0);
        done += more;
    }
    CHECK(back, sent / PAGE * PAGE, 1, "received");
    CHECK(at, BYTES, 1, "sent");
    say("all that was sent was received\n");
}
