/* Sums of products for whatever vector units the machine has. The order of additions does not depend on the machine where
   vectors are those of the compiler; compilers that would vectorize such sums by themselves do so by shuffling numbers. */
#ifndef ATTSVM_LANES_H
#define ATTSVM_LANES_H

#include <string.h>

#include "steps.h"

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__linux__)
#define VECTORIZED __attribute__((target_clones("avx512f", "arch=haswell", "default")))
#else
#define VECTORIZED
#endif

#ifdef __GNUC__
#define INLINE static inline __attribute__((always_inline)) /* into the clones, so with their instructions */
enum { LANES = 8 };
typedef double Lanes __attribute__((vector_size(64), aligned(8), may_alias)); /* LANES numbers, wherever they begin */
#else
#define INLINE static inline
enum { LANES = 1 };
typedef double Lanes;
#endif

INLINE const Lanes *lanes(const double *x) { return (const Lanes *)x; }

/* Sum of the numbers of a vector. */
INLINE double lane_sum(const Lanes *x) {
    double part[LANES];
    memcpy(part, x, sizeof(part));
    for (int half = LANES / 2; half; half /= 2)
        for (int l = 0; l < half; l++) part[l] += part[l + half];
    return part[0];
}

/* out_k = x_k . y for four rows x_k, `wide` apart: y is read once for them, and no sum waits for the one before */
INLINE void four_products(int n, Size wide, const double *x, const double *y, double *out) {
    Lanes a = {0.0}, b = a, c = a, d = a;
    double p = 0.0, q = 0.0, r = 0.0, s = 0.0;
    int i = 0;
    for (; i + LANES <= n; i += LANES) {
        const double *part = x + i;
        const Lanes now = *lanes(y + i);
        a += *lanes(part) * now;
        b += *lanes(part + wide) * now;
        c += *lanes(part + 2 * wide) * now;
        d += *lanes(part + 3 * wide) * now;
    }
    for (; i < n; i++) {
        const double *part = x + i;
        p += part[0] * y[i], q += part[wide] * y[i], r += part[2 * wide] * y[i], s += part[3 * wide] * y[i];
    }
    out[0] = p + lane_sum(&a), out[1] = q + lane_sum(&b), out[2] = r + lane_sum(&c), out[3] = s + lane_sum(&d);
}

/* out_k = x_k . y for the rows x_k (count, n) */
INLINE void all_products(Size count, int n, const double *x, const double *y, double *out) {
    Size k = 0;
    for (; k + 4 <= count; k += 4) four_products(n, n, x + k * n, y, out + k);
    for (; k < count; k++) {
        Lanes sum = {0.0};
        double rest = 0.0;
        int i = 0;
        for (; i + LANES <= n; i += LANES) sum += *lanes(x + k * n + i) * *lanes(y + i);
        for (; i < n; i++) rest += x[k * n + i] * y[i];
        out[k] = rest + lane_sum(&sum);
    }
}

#endif
