/* Least nuclear norms of problems of one shape, each from the multipliers of its least Frobenius norm (see nuclear.h). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "nuclear.h"

/* The start from the least Frobenius norm: the multiple of it that leaves every row some slack, mu relative to the largest
   singular value, share of the dual ball, least slack. As in interior_point.py. */
static const double MULTIPLE = 1.1, START_MU = 0.05, SHARE = 0.5, LEAST_SLACK = 1e-2, BALL = 0.95;
/* Multipliers of a soft margin start at most so many times as large as those of W. */
static const double LARGEST = 100.0;
/* Steps without progress that end a problem, and fewer of them where the digits are spent. */
enum { PATIENCE = 15, PAUSE = 2 };
static const double NEAR = 1e-6;

typedef struct {
    double *U, *sigma, *Vt, *work; /* p r, r, r q, lwork, where r = min(p, q) */
    int *whole, lwork;
    double *sides, *room, *best_X, *best_lam; /* m, m, n n, m */
} Run;

/* The penalty's part of a start, as in minimize.c: multipliers in the middle of what it allows, slacks that make the point
   feasible for the rows, and a D inside the dual ball; `size` is the least Frobenius norm, h are the values of the rows. */
static void start_penalty(Step *s, const double *sides, double size) {
    Penalty *penalty = &s->penalty;
    double violation = 0.0, even = 0.0;
    if (penalty->loss == HARD) return;
    if (penalty->loss == SQUARED) penalty->C *= size; /* in units in which the least Frobenius norm is 1 */
    memset(s->load, 0, doubles(penalty->groups));
    for (int k = 0; k < s->m; k++) {
        s->load[penalty->group[k]] += penalty->weight[k] > 0.0;
        violation += penalty->weight[k] > 0.0 ? fmax(sides[k] - s->h[k], 0.1) / penalty->weight[k] / s->m : 0.0;
        even += s->lam[k] / s->m;
    }
    for (int k = 0; k < s->m; k++) {
        const double w = penalty->weight[k];
        if (!(w > 0.0)) continue; /* no row */
        s->lam[k] = fmin(0.5 * penalty->C / (s->load[penalty->group[k]] * w), LARGEST * even);
        s->slack[k] = fmax(s->h[k] + w * violation - sides[k], 0.1);
    }
    memset(s->load, 0, doubles(penalty->groups));
    for (int k = 0; k < s->m; k++) s->load[penalty->group[k]] += penalty->weight[k] * s->lam[k];
    for (int j = 0; j < penalty->groups; j++) {
        s->t[j] = penalty->C - s->load[j];
        s->eta[j] = penalty->loss == HINGE ? violation : 0.5 * s->load[j] / penalty->C;
    }
    bordered(s, s->lam, 0.0, s->one);
    const double top = sqrt(dot(s->p * s->q, s->block, s->block)), inside = fmin(1.0, SHARE / fmax(top, 1e-300));
    for (int i = 0; i < s->p * s->q; i++) {
        s->own[i] = inside * s->block[i];
        s->apart[i] = s->block[i] - s->own[i];
    }
}

/* A point strictly inside both cones, and centred, from multipliers `first` of the least Frobenius norm of any scale; the
   problem is scaled so that this norm is 1. Returns it, or 0 if there is no such point. */
static double start(Step *s, Run *run, const double *c, const double *first) {
    const int m = s->m, p = s->p, q = s->q, n = s->n, r = p < q ? p : q;
    int failed;
    bordered(s, first, 0.0, s->one);
    const double length = sqrt(dot(p * q, s->block, s->block)), size = dot(m, c, first) / length;
    if (!(length > 0.0 && size > 0.0 && isfinite(length + size))) return 0.0;
    for (int k = 0; k < p * q; k++) s->block[k] /= length;
    lapack.gesdd("S", &p, &q, s->block, &p, run->sigma, run->U, &p, run->Vt, &r, run->work, &run->lwork, run->whole,
                 &failed);
    if (failed) return 0.0;
    const double top = run->sigma[0], mu = START_MU * MULTIPLE * top;
    /* With P = U h U' + 2 mu (I - U U') and Q alike, mu X^{-1} has the diagonal blocks I/2 of Z. */
    memset(s->X, 0, doubles((Size)n * n));
    for (int k = 0; k < r; k++) {
        const double sigma = MULTIPLE * run->sigma[k], h = sqrt(mu * mu + sigma * sigma) - mu;
        for (int j = 0; j < n; j++)
            for (int i = 0; i < n; i++) {
                const double left = i < p ? run->U[i + (Size)k * p] : run->Vt[k + (i - p) * (Size)r];
                const double right = j < p ? run->U[j + (Size)k * p] : run->Vt[k + (j - p) * (Size)r];
                s->X[i + (Size)j * n] += ((i < p) == (j < p) ? h : sigma) * left * right;
            }
    }
    for (int i = 0; i < n; i++) s->X[i * ((Size)n + 1)] += 2.0 * mu;
    for (int k = 0; k < m; k++) run->sides[k] = c[k] / size;
    values_of(s, s->X + (Size)p * n, n, s->h);
    for (int k = 0; k < m; k++) {
        const int ordered = s->sense[k] == INEQUALITY;
        s->slack[k] = ordered ? fmax(s->h[k] - run->sides[k], LEAST_SLACK) : 0.0;
        s->rest[k] = ordered ? mu / s->slack[k] : 0.0;
    }
    /* Every inequality row takes part, within most of what is left of the dual ball. */
    bordered(s, s->rest, 0.0, s->one);
    const double extra = sqrt(dot(p * q, s->block, s->block)), left = fmin(1.0, (BALL - SHARE) / fmax(extra, 1e-300));
    for (int k = 0; k < m; k++) s->lam[k] = first[k] * (SHARE / (top * length)) + s->rest[k] * left;
    start_penalty(s, run->sides, size);
    return size;
}

/* Steps until the gap is closed or nothing improves; how many. What a row may miss is relative to its `room`. */
static int iterate(Step *s, Run *run, int most, double goal, const volatile int *stop) {
    const int m = s->m, n = s->n;
    double best = INFINITY, mu;
    int steps = 0, waited = 0;
    memcpy(run->best_X, s->X, doubles((Size)n * n));
    memcpy(run->best_lam, s->lam, doubles(m));
    while (!*stop && steps < most && best > goal && waited < PATIENCE && (waited < PAUSE || best >= NEAR)) {
        Measures found;
        steps++;
        if (nuclear_step(s, &mu)) break;
        measure(s, &found); /* h are the values of the rows */
        double worst = found.gap, sum = found.gap;
        if (s->penalty.loss != HARD) worst = larger(worst, found.missed);
        for (int k = 0; k < m; k++) {
            const double missed = fabs(s->rhs[k] + s->slack[k] - s->h[k]) / run->room[k];
            worst = larger(worst, missed);
            sum += missed;
        }
        waited++;
        if (isfinite(sum) && worst < best) {
            best = worst;
            waited = 0;
            memcpy(run->best_X, s->X, doubles((Size)n * n));
            memcpy(run->best_lam, s->lam, doubles(m));
        }
    }
    return steps;
}

static void *run_memory(Run *run, const Step *s) {
    const Size n = s->n, m = s->m, p = s->p, q = s->q, r = p < q ? p : q;
    run->lwork = 4 * (int)(r * r) + 8 * (int)(p + q) + 64;
    double *memory = malloc(doubles(p * r + r + r * q + run->lwork + 3 * m + n * n) + ints(8 * r));
    if (!memory) return NULL;
    run->U = memory;
    run->sigma = run->U + p * r;
    run->Vt = run->sigma + r;
    run->work = run->Vt + r * q;
    run->sides = run->work + run->lwork;
    run->room = run->sides + m;
    run->best_lam = run->room + m;
    run->best_X = run->best_lam + m;
    run->whole = (int *)(run->best_X + n * n);
    return memory;
}

/* `count` problems in C order: factors (m, p) and (m, q) of unit rows, right-hand sides, what a violation of 1 amounts to,
   and senses (m,); a penalty as for attsvm_minimize. `lam` (m,) holds multipliers of the least Frobenius norm up to scale, and then those of the nuclear norm;
   W (p, q) and the steps are written, W = NaN where the start has no meaning; `stop` as for attsvm_minimize. Returns the
   problems that were done: all, unless memory was short. */
EXPORT int attsvm_nuclear(int loss, int count, int m, int p, int q, int groups, const double *a, const double *b,
                          const double *c, const double *room, const signed char *sense, const int *group,
                          const double *weight, const double *C, double *W, double *lam, int *steps, int most,
                          double goal, const volatile int *stop) {
    const int n = p + q;
    int done = 0;
    Step s = {.m = m, .p = p, .q = q, .n = n, .sense = sense, .penalty = {.loss = loss, .groups = groups}};
    Run run;
    double *memory = step_memory(&s, count), *other = run_memory(&run, &s);
    double *point = malloc(doubles((Size)n * n + 2 * (Size)m));
    s.X = point;
    if (memory && other && point) {
        s.lam = s.X + (Size)n * n;
        s.slack = s.lam + m;
        s.rhs = run.sides;
        for (; done < count; done++) {
            s.a = a, s.b = b, s.sense = sense;
            if (loss != HARD) s.penalty = (Penalty){loss, groups, group, weight, C[done]};
            place_groups(&s);
            const double size = start(&s, &run, c, lam);
            for (int k = 0; k < m; k++) run.room[k] = room[k] / size;
            *steps++ = size > 0.0 ? iterate(&s, &run, most, goal, stop) : 0;
            for (int i = 0; i < p; i++)
                for (int j = 0; j < q; j++) W[i * q + j] = size > 0.0 ? run.best_X[i + (p + j) * (Size)n] * size : NAN;
            if (size > 0.0) memcpy(lam, run.best_lam, doubles(m));
            a += (Size)m * p, b += (Size)m * q, c += m, room += m, sense += m, W += (Size)p * q, lam += m;
            if (loss != HARD) group += m, weight += m;
        }
    }
    free(memory), free(other), free(point);
    return done;
}
