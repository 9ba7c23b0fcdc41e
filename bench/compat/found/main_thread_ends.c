/* The only thread of a program ends by pthread_exit: so does the program, with 0. */
#include <pthread.h>
int main(void) { pthread_exit(0); }
