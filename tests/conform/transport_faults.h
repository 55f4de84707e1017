/* SPDX-License-Identifier: Apache-2.0
 *
 * The transport suite's faults, by name.
 *
 * Thread: the test's.  Owner: nothing kept.
 */
#ifndef HY_TESTS_TRANSPORT_FAULTS_H
#define HY_TESTS_TRANSPORT_FAULTS_H

#include "tests/conform/transport.h"

/* The other process: opens at addr, tells its address to descriptor out, serves until killed. */
int faults_far(const tr_impl *im, const char *addr, int out);
/* Processes: not for the loop. */
void faults_kill(const tr_impl *im);
void faults_silence(const tr_impl *im);
void faults_idle(const tr_impl *im);
void faults_garbage(const tr_impl *im);
void faults_rails(const tr_impl *im);
void faults_two_rails(const tr_impl *im);
void faults_beside(const tr_impl *im);
void faults_not_opened(const tr_impl *im);
/* A process on this host that may not read others' memory. */
void faults_deaf(const tr_impl *im);

#endif
