/* Keeps one connection to the host by TCP and one by vsock: tells what comes on each, and calls anew once both are reset. */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/vm_sockets.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int call(struct sockaddr *to, socklen_t len)
{
	int s = socket(to->sa_family, SOCK_STREAM, 0);

	if (s < 0 || connect(s, to, len) < 0) {
		printf("BAD connection of family %d: %s\n", to->sa_family, strerror(errno));
		exit(1);
	}
	return s;
}

/* Whether it is still there. Who begins to read from a socket of vsock that was reset is told ENOTCONN, who had begun ECONNRESET. */
static int hear(const char *name, int s)
{
	char bytes[64];
	ssize_t n = read(s, bytes, sizeof(bytes) - 1);

	if (n < 0)
		printf("%s: %s\n", name, errno == ECONNRESET || errno == ENOTCONN ? "reset" : strerror(errno));
	else
		printf("%s: %.*s\n", name, (int)n, bytes);
	return n > 0;
}

int main(int argc, char **argv)
{
	struct sockaddr_in net = { .sin_family = AF_INET, .sin_port = htons(atoi(argv[1])) };
	struct sockaddr_vm host = { .svm_family = AF_VSOCK, .svm_cid = 2, .svm_port = 99 };
	int there;

	setvbuf(stdout, NULL, _IONBF, 0);
	inet_pton(AF_INET, "10.0.2.2", &net.sin_addr);
	for (int calls = 1; calls <= 2; calls++) {
		int tcp = call((struct sockaddr *)&net, sizeof(net)), vsock = call((struct sockaddr *)&host, sizeof(host));

		printf("call %d\n", calls);
		do {
			there = hear("tcp", tcp);
			there += hear("vsock", vsock);
		} while (there == 2);
	}
	return 0;
}
