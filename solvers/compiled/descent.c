/* Coordinate descent on the dual of a soft margin in the Frobenius norm, one query after another.

     maximize  rhs . lam - |W(lam)|^2 / 2 - h*(lam),    W(lam) = sum_k lam_k a_k b_k'

   The rows of a query share their right factor b, so a visit costs one product W b, one product of the query's rows with
   it, and one update of W (made when the next visit reads it). In between the multipliers of the query that matter, those that are positive or should be,
   move in steps of one coordinate (each has its own bound) or of two (their sum has a bound: what is left of it is a
   further multiplier, of a row of zeros) until their own optimality conditions hold to a share of what they missed.

   A query whose conditions hold is left out of the next 1, 2, 4, ... sweeps.

   Once the face is found, sweeps converge linearly. The best point of the space that the last iterates span is then much
   nearer to the solution; its multipliers are made admissible, and it is taken if the dual rises.

   S. S. Keerthi, S. Sundararajan, K.-W. Chang, C.-J. Hsieh, C.-J. Lin, "A sequential dual method for large scale
   multi-class linear SVMs", KDD 2008. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "lanes.h"

/* Rows of a query that move in one visit, steps of such a visit per row, and the share of a violation that may be left. */
enum { MOST = 48, STEPS = 10, LONGEST_REST = 16 };
/* Differences of iterates that a combined step is made of, at least 3; one more iterate is kept. */
enum { PAST = 3 };
/* Share of the trace below which a direction depends on the ones before. */
static const double DEPENDENT = 1e-12;
/* Visits per query between two iterates that are kept. */
static const double SPACING = 0.5;
static const double SHARE = 0.05;
/* Share of a bound that rounding may leave of it. */
static const double ROUNDING = 1e-14;

/* out_k = x_k . y for the rows x_k (count, n) */
VECTORIZED static void products(Size count, int n, const double *x, const double *y, double *out) {
    all_products(count, n, x, y, out);
}

/* W += x y' and then out = W z, for W (dx, dz), in one pass over W */
VECTORIZED static void update_and_multiply(int dx, int dz, const double *restrict x, const double *restrict y,
                                           const double *restrict z, double *restrict W, double *restrict out) {
    for (int i = 0; i < dx; i++, W += dz) {
        const double factor = x[i];
        Lanes sum = {0.0};
        double rest = 0.0;
        int j = 0;
        for (; j + LANES <= dz; j += LANES) sum += (*(Lanes *)(W + j) += factor * *lanes(y + j)) * *lanes(z + j);
        for (; j < dz; j++) rest += (W[j] += factor * y[j]) * z[j];
        out[i] = rest + lane_sum(&sum);
    }
}

typedef struct {
    int dx, dz;
    double *W;              /* (dx, dz) */
    double cap;             /* bound of a multiplier or of the sum of a query; infinite for squared hinges */
    int joint;              /* one slack per query */
    double ridge;           /* 1 / (2 C) for squared hinges */
    double *u, *g, *move;   /* W b (dx,), gradient (rows of a query,), left factor of the last change of W (dx,) */
    const double *moved;    /* right factor of a change that W still lacks, or NULL */
} Descent;

/* Some rows of one query, with their Gram matrix. */
typedef struct {
    int n;
    Size row[MOST + 1];
    double lam[MOST + 1], g[MOST + 1], Q[(MOST + 1) * (MOST + 1)];
} Block;

static uint64_t next_random(uint64_t *state) {
    uint64_t x = *state;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return *state = x;
}

/* The largest gradient, and the least one of a positive multiplier (-1 without any). */
static void extremes(const Block *part, int *up, int *down) {
    *up = 0;
    *down = -1;
    for (int k = 0; k < part->n; k++) {
        if (part->g[k] > part->g[*up]) *up = k;
        if (part->lam[k] > 0.0 && (*down < 0 || part->g[k] < part->g[*down])) *down = k;
    }
}

static double pair_curve(const Block *part, int up, int down) {
    int n = part->n;
    return part->Q[(Size)up * n + up] + part->Q[(Size)down * n + down] - 2.0 * part->Q[(Size)up * n + down];
}

/* From one multiplier to another, whose gradient is larger by `miss`: as far as is best, or all of it. */
static void move_pair(Block *part, int up, int down, double miss) {
    int n = part->n;
    const double *of_up = part->Q + (Size)up * n, *of_down = part->Q + (Size)down * n;
    double curve = pair_curve(part, up, down);
    int whole = !(curve * part->lam[down] > miss);
    double length = whole ? part->lam[down] : miss / curve;
    part->lam[up] += length;
    part->lam[down] = whole ? 0.0 : part->lam[down] - length;
    for (int k = 0; k < n; k++) part->g[k] -= length * (of_up[k] - of_down[k]);
}

/* Steps of two multipliers whose sum stays: from the least gradient of a positive one to the largest. */
static void move_pairs(Block *part, double goal) {
    for (int step = 0; step < STEPS * part->n; step++) {
        int up, down;
        extremes(part, &up, &down);
        double miss = down < 0 ? 0.0 : part->g[up] - part->g[down];
        if (!(miss > goal)) return;
        move_pair(part, up, down, miss);
    }
}

/* Nonnegative multipliers whose sum has a curvature of its own, which steps of one alone would see as their own: steps
   of one or of two, whichever gains more. */
static void move_either(Block *part, double goal) {
    int n = part->n;
    for (int step = 0; step < STEPS * n; step++) {
        int up, down;
        extremes(part, &up, &down);
        double rise = part->g[up] > 0.0 ? part->g[up] : 0.0, fall = down >= 0 && part->g[down] < 0.0 ? -part->g[down] : 0.0;
        int one = rise >= fall ? up : down;
        double alone = rise >= fall ? rise : fall, miss = down < 0 ? 0.0 : part->g[up] - part->g[down];
        if (!(alone > goal)) return;
        double own = part->Q[(Size)one * n + one], curve = down < 0 ? INFINITY : pair_curve(part, up, down);
        if (miss * miss * own > alone * alone * curve) {
            move_pair(part, up, down, miss);
            continue;
        }
        double to = part->lam[one] + part->g[one] / own;
        double length = (to > 0.0 ? to : 0.0) - part->lam[one];
        if (length == 0.0) return; /* below rounding */
        part->lam[one] = to > 0.0 ? to : 0.0;
        for (int k = 0; k < n; k++) part->g[k] -= length * part->Q[(Size)one * n + k];
    }
}

/* Steps of one multiplier between 0 and its cap. */
static void move_single(Block *part, double cap, double goal) {
    int n = part->n;
    for (int step = 0; step < STEPS * n; step++) {
        int best = -1;
        double most = goal;
        for (int k = 0; k < n; k++) {
            double g = part->g[k];
            double miss = g > 0.0 ? (part->lam[k] < cap ? g : 0.0) : (part->lam[k] > 0.0 ? -g : 0.0);
            if (miss > most) {
                most = miss;
                best = k;
            }
        }
        if (best < 0) return;
        const double *of = part->Q + (Size)best * n;
        double to = of[best] > 0.0 ? part->lam[best] + part->g[best] / of[best] : part->g[best] > 0.0 ? cap : 0.0;
        to = to < 0.0 ? 0.0 : to > cap ? cap : to;
        double length = to - part->lam[best];
        if (length == 0.0) { /* below rounding */
            part->g[best] = 0.0;
            continue;
        }
        part->lam[best] = to;
        for (int k = 0; k < n; k++) part->g[k] -= length * of[k];
    }
}

/* The rows of a query that matter, and by how much the worst of them misses its optimality condition. */
static double choose(const Descent *d, Size count, const double *lam, Block *part) {
    const double *g = d->g;
    double top = 0.0, low = INFINITY, sum = 0.0, miss = 0.0;
    double wishes[MOST];
    int shared = d->joint && d->cap < INFINITY;
    for (Size k = 0; k < count; k++) {
        sum += lam[k];
        if (g[k] > top) top = g[k];
        if (lam[k] > 0.0 && g[k] < low) low = g[k];
    }
    if (shared && sum < d->cap * (1.0 - ROUNDING) && low > 0.0) low = 0.0; /* what is left of the bound has gradient 0 */
    part->n = 0;
    double middle = shared && low < INFINITY ? 0.5 * (top + low) : 0.0;
    for (Size k = 0; k < count; k++) {
        double wish; /* how much the row is wanted: the largest and the least gradients are those that move */
        int wanted;
        if (shared) {
            wanted = lam[k] > 0.0 || g[k] > low;
            wish = fabs(g[k] - middle);
        } else {
            wish = g[k] > 0.0 ? (lam[k] < d->cap ? g[k] : 0.0) : (lam[k] > 0.0 ? -g[k] : 0.0);
            if (wish > miss) miss = wish;
            wanted = lam[k] > 0.0 || wish > 0.0;
        }
        if (!wanted) continue;
        int place = part->n;
        if (place == MOST) { /* the least wanted gives way */
            place = 0;
            for (int l = 1; l < MOST; l++)
                if (wishes[l] < wishes[place]) place = l;
            if (!(wish > wishes[place])) continue;
        } else {
            part->n++;
        }
        wishes[place] = wish;
        part->row[place] = k;
        part->lam[place] = lam[k];
        part->g[place] = g[k];
    }
    return shared ? (low < INFINITY ? top - low : 0.0) : miss;
}

static void fill_gram(const Descent *d, const double *a, double square, Block *part) {
    int n = part->n;
    for (int i = 0; i < n; i++)
        for (int j = 0; j <= i; j++) {
            double q = square * dot(d->dx, a + part->row[i] * d->dx, a + part->row[j] * d->dx);
            if (d->ridge > 0.0 && (d->joint || i == j)) q += d->ridge;
            part->Q[(Size)i * n + j] = part->Q[(Size)j * n + i] = q;
        }
}

/* The bound of a sum as one more multiplier, of a row of zeros. */
static void add_rest(double cap, double fixed, Block *part) {
    int n = part->n;
    double sum = fixed;
    for (int k = n - 1; k >= 0; k--) { /* a column more for every row of the matrix */
        sum += part->lam[k];
        memmove(part->Q + (Size)k * (n + 1), part->Q + (Size)k * n, doubles(n));
        part->Q[(Size)k * (n + 1) + n] = 0.0;
    }
    memset(part->Q + (Size)n * (n + 1), 0, doubles(n + 1));
    part->row[n] = -1;
    part->lam[n] = sum < cap * (1.0 - ROUNDING) ? cap - sum : 0.0;
    part->g[n] = 0.0;
    part->n++;
}

/* Improve the multipliers of one query; by how much it missed its optimality conditions. */
static double visit(Descent *d, Size count, const double *a, const double *b, const double *rhs, double *lam,
                    double goal, Block *part) {
    int dx = d->dx, dz = d->dz;
    double square = dot(dz, b, b), load = 0.0;
    if (d->moved)
        update_and_multiply(dx, dz, d->move, d->moved, b, d->W, d->u);
    else
        products(dx, dz, d->W, b, d->u);
    d->moved = NULL;
    if (d->joint && d->ridge > 0.0)
        for (Size k = 0; k < count; k++) load += lam[k];
    products(count, dx, a, d->u, d->g);
    for (Size k = 0; k < count; k++) d->g[k] = rhs[k] - d->g[k] - d->ridge * (d->joint ? load : lam[k]);
    double miss = choose(d, count, lam, part);
    if (!(miss > goal) || !part->n) return miss;
    fill_gram(d, a, square, part);
    double left = SHARE * miss > goal ? SHARE * miss : goal;
    int rows = part->n;
    if (d->joint && d->cap < INFINITY) {
        double fixed = 0.0;
        for (Size k = 0; k < count; k++) fixed += lam[k];
        for (int k = 0; k < rows; k++) fixed -= part->lam[k];
        add_rest(d->cap, fixed > 0.0 && rows == MOST ? fixed : 0.0, part);
        move_pairs(part, left);
    } else if (d->joint) {
        move_either(part, left);
    } else {
        move_single(part, d->cap, left);
    }
    memset(d->move, 0, doubles(dx));
    for (int k = 0; k < rows; k++) {
        double change = part->lam[k] - lam[part->row[k]];
        if (change == 0.0) continue;
        lam[part->row[k]] = part->lam[k];
        const double *row = a + part->row[k] * dx;
        for (int i = 0; i < dx; i++) d->move[i] += change * row[i];
    }
    d->moved = b; /* the next visit reads W anyway */
    return miss;
}

static double long_dot(Size n, const double *x, const double *y) {
    double sum;
    products(1, (int)n, x, y, &sum);
    return sum;
}

/* Products of per-slack sums of multipliers: what the penalty adds to the curvature. `x` and `y` (m,) are multipliers. */
static double loads_product(int q, const int64_t *begin, int joint, const double *x, const double *y) {
    if (!joint) return long_dot((Size)begin[q], x, y);
    double product = 0.0;
    for (int j = 0; j < q; j++) {
        double left = 0.0, right = 0.0;
        for (Size k = (Size)begin[j]; k < (Size)begin[j + 1]; k++) left += x[k], right += y[k];
        product += left * right;
    }
    return product;
}

/* c of A c = g for a positive semidefinite A (PAST, PAST), without directions that depend on the ones before. */
static void solve_past(double *A, double *g, double *c) {
    double trace = 0.0;
    int used[PAST];
    for (int i = 0; i < PAST; i++) trace += A[i * PAST + i];
    for (int i = 0; i < PAST; i++) {
        used[i] = A[i * PAST + i] > DEPENDENT * trace;
        for (int j = i + 1; used[i] && j < PAST; j++) {
            const double share = A[j * PAST + i] / A[i * PAST + i];
            for (int l = i; l < PAST; l++) A[j * PAST + l] -= share * A[i * PAST + l];
            g[j] -= share * g[i];
        }
    }
    for (int i = PAST - 1; i >= 0; i--) {
        c[i] = used[i] ? g[i] : 0.0;
        for (int j = i + 1; used[i] && j < PAST; j++) c[i] -= A[i * PAST + j] * c[j];
        if (used[i]) c[i] /= A[i * PAST + i];
    }
}

/* Gradient of the dual at lam, whose W is d->W: it is small where multipliers move, so products with it keep their digits. */
static void gradient(Descent *d, int q, const int64_t *begin, const double *a, const double *b, const double *rhs,
                     const double *lam, double *out) {
    for (int j = 0; j < q; j++) {
        const Size first = (Size)begin[j], end = (Size)begin[j + 1];
        double load = 0.0;
        if (first == end) continue;
        products(d->dx, d->dz, d->W, b + (Size)j * d->dz, d->u);
        products(end - first, d->dx, a + first * d->dx, d->u, out + first);
        for (Size k = first; d->joint && k < end; k++) load += lam[k];
        for (Size k = first; k < end; k++) out[k] = rhs[k] - out[k] - d->ridge * (d->joint ? load : lam[k]);
    }
}

/* New multipliers of one query: those after the step, made admissible. Whether this changed them. */
static int make_admissible(const Descent *d, Size count, const double *lam, const double *step, double *to) {
    double sum = 0.0;
    int changed = 0;
    for (Size k = 0; k < count; k++) {
        to[k] = lam[k] + step[k];
        if (to[k] < 0.0) to[k] = 0.0, changed = 1;
        if (!d->joint && to[k] > d->cap) to[k] = d->cap, changed = 1;
        sum += to[k];
    }
    if (!d->joint || !(sum > d->cap)) return changed;
    for (Size k = 0; k < count; k++) to[k] *= d->cap / sum; /* not less: what is left of a bound is a multiplier, too */
    return 1;
}

/* Move to the best combination of the last PAST + 1 iterates `past` (PAST + 1, m + dx dz), of which the last one is now,
   if the dual rises. The iterates are overwritten. */
static int combine_past(Descent *d, int q, const int64_t *begin, const double *a, const double *b, const double *rhs,
                         double *lam, double *past) {
    const Size m = (Size)begin[q], N = (Size)d->dx * d->dz, wide = m + N;
    double A[PAST * PAST], g[PAST], c[PAST];
    double *slope = past + PAST * wide; /* the last iterate is lam and W */
    for (int i = 0; i < PAST; i++) {
        double *now = past + i * wide;
        const double *next = now + wide;
        for (Size k = 0; k < wide; k++) now[k] = next[k] - now[k];
    }
    gradient(d, q, begin, a, b, rhs, lam, slope);
    for (int i = 0; i < PAST; i++) {
        const double *x = past + i * wide;
        for (int j = 0; j <= i; j++) {
            const double *y = past + j * wide;
            double product = long_dot(N, x + m, y + m);
            if (d->ridge > 0.0) product += d->ridge * loads_product(q, begin, d->joint, x, y);
            A[i * PAST + j] = A[j * PAST + i] = product;
        }
        g[i] = long_dot(m, slope, x);
    }
    solve_past(A, g, c);
    double *step = past, *to = past + wide, *change = past + 2 * wide; /* the first differences are no longer needed */
    for (Size k = 0; k < wide; k++) {
        double sum = 0.0;
        for (int i = 0; i < PAST; i++) sum += c[i] * past[i * wide + k];
        step[k] = sum;
    }
    double *move = step + m; /* of W */
    for (int j = 0; j < q; j++) {
        const Size first = (Size)begin[j], count = (Size)(begin[j + 1] - begin[j]);
        const int changed = make_admissible(d, count, lam + first, step + first, to + first);
        for (Size k = first; k < first + count; k++) change[k] = to[k] - lam[k];
        if (!changed) continue;
        memset(d->u, 0, doubles(d->dx)); /* what of the step is lost, for W too */
        for (Size k = first; k < first + count; k++) {
            const double lost = change[k] - step[k];
            for (int i = 0; lost != 0.0 && i < d->dx; i++) d->u[i] += lost * a[k * d->dx + i];
        }
        for (int i = 0; i < d->dx; i++)
            for (int l = 0; l < d->dz; l++) move[(Size)i * d->dz + l] += d->u[i] * b[(Size)j * d->dz + l];
    }
    double gain = long_dot(m, slope, change) - 0.5 * long_dot(N, move, move);
    if (d->ridge > 0.0) gain -= 0.5 * d->ridge * loads_product(q, begin, d->joint, change, change);
    if (!(gain > 0.0)) return 0;
    memcpy(lam, to, doubles(m));
    for (Size k = 0; k < N; k++) d->W[k] += move[k];
    return 1;
}

/* Sweeps over the queries, in random order: lam and W = W(lam) move, `rest` and `slept` (q,) and `seed` carry on. Rows
   a (m, dx) are sorted by query, those of query j from begin[j] to begin[j + 1]. `goal` is the violation that is left
   alone; `misses` (q,) are the violations that the last visits found. `past` (PAST + 1, m + dx dz) holds `kept[0]`
   iterates, the last one `kept[1]` visits ago, unless it is NULL. Once another thread sets `stop`, no further query is visited. Returns the visits made, or -1 without
   memory. */
EXPORT Size attsvm_descend(int q, int dx, int dz, const int64_t *begin, const double *a, const double *b,
                           const double *rhs, int joint, int squared, double C, double goal, int sweeps, double *lam,
                           double *W, double *misses, int *rest, int *slept, uint64_t *seed, double *past, int *kept,
                           const volatile int *stop) {
    const Size m = (Size)begin[q], N = (Size)dx * dz;
    Size longest = 1, visits = 0;
    for (int j = 0; j < q; j++)
        if (begin[j + 1] - begin[j] > longest) longest = (Size)(begin[j + 1] - begin[j]);
    double *memory = malloc(doubles(2 * (Size)dx + longest));
    int *order = malloc(ints((Size)q + 1)); /* not of 0 bytes, which may be NULL */
    Block *part = malloc(sizeof(Block));
    if (!memory || !order || !part) {
        free(memory);
        free(order);
        free(part);
        return -1;
    }
    Descent d = {dx, dz, W, squared ? INFINITY : C, joint, squared ? 0.5 / C : 0.0, memory, memory + 2 * dx, memory + dx, NULL};
    for (int sweep = 0; sweep < sweeps && !*stop; sweep++) {
        int n = 0;
        double worst = 0.0;
        for (int j = 0; j < q; j++) {
            if (misses[j] > worst) worst = misses[j];
            if (slept[j] > 0) {
                slept[j]--;
                continue;
            }
            order[n++] = j;
        }
        double idle = 0.01 * worst > goal ? 0.01 * worst : goal;
        for (int i = n - 1; i > 0; i--) {
            int k = (int)(next_random(seed) % (uint64_t)(i + 1)), kept = order[i];
            order[i] = order[k];
            order[k] = kept;
        }
        for (int i = 0; i < n && !*stop; i++) {
            int j = order[i];
            Size first = (Size)begin[j], count = (Size)(begin[j + 1] - begin[j]);
            if (!count) continue;
            misses[j] = visit(&d, count, a + first * dx, b + (Size)j * dz, rhs + first, lam + first, goal, part);
            visits++;
            if (misses[j] > idle) {
                rest[j] = 0;
            } else {
                slept[j] = rest[j];
                rest[j] = rest[j] ? (2 * rest[j] < LONGEST_REST ? 2 * rest[j] : LONGEST_REST) : 1;
            }
        }
        if (d.moved) update_and_multiply(dx, dz, d.move, d.moved, d.moved, W, d.u);
        d.moved = NULL;
        kept[1] += n;
        if (!past || *stop || kept[1] < SPACING * q) continue; /* a combination takes as long as a visit of every query */
        kept[1] = 0;
        double *now = past + kept[0] * (m + N);
        memcpy(now, lam, doubles(m));
        memcpy(now + m, W, doubles(N));
        if (++kept[0] > PAST) {
            if (combine_past(&d, q, begin, a, b, rhs, lam, past)) { /* no query knows its conditions any more */
                memset(rest, 0, ints(q));
                memset(slept, 0, ints(q));
            }
            kept[0] = 0;
        }
    }
    free(memory);
    free(order);
    free(part);
    return visits;
}
