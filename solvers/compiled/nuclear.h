/* A primal-dual interior point method for the nuclear norm that works on the multipliers alone.

   The semidefinite form of the nuclear norm is min tr(X)/2 with X = [[P, W], [W', Q]] >= 0, and its dual has slack
   Z = [[I, -D], [-D', I]] / 2 with D = W(lam). Eliminating X leaves one linear system in the m multipliers (the HKM
   direction), and since the rows have rank one its matrix is a sum of four entrywise products of Gram matrices:

     4 M = (a P a') o (b Y22 b') + (b Q b') o (a Y11 a') + C + C',   C = (a W b') o (a Y12 b')',   Y = Z^{-1}.

   Soft margins add what steps.h derives: slacks eta of the groups, which answer a change of the multipliers by
   eta + d eta = lift + e1 E dlam, and so a block e1 w w' for each group in M. There Z is carried with a D of its own, which
   differs from W(lam) at the start, by `apart`, until a full step makes them equal.

   Arrays of NumPy by rows, a (m, p) and b (m, q), are here their transposes by columns. */
#ifndef ATTSVM_NUCLEAR_H
#define ATTSVM_NUCLEAR_H

#include "steps.h"

enum { STALLED = 1, NO_MEMORY = 2 };

typedef struct { /* as `Measures` in kernels.py */
    double mu, gap, objective, missed; /* mu before the step, the others after it */
} Measures;

/* The system of a step where there are many more rows than entries of W (see nuclear_entries.c). */
typedef struct {
    int most, kept, shared;   /* rows that may be kept, and are; groups of several rows */
    double *K, *L, *A, *room; /* N N */
    double *half, *image;     /* N m: rows written out; N most */
    double *diagonal, *weight, *scale, *right, *seen, *change; /* m */
    double *variance, *square, *left, *pull, *sums;            /* shared, and N shared */
    double *vector, *part;                                     /* N, most */
    int *lead, *of, *at, *rows, *place, *first; /* of rows: that of its group with another role, group, number if kept; most;
                                                   groups; shared */
    signed char *sense;                         /* most */
} Entries;

/* One problem, where its method stands, and room for a step. */
typedef struct {
    int m, p, q, n;
    const double *a, *b, *rhs;
    const signed char *sense;
    double *X, *lam, *slack;
    double *Z, *Y, *Z_root, *d_Z, *d_X, *target, *one, *two; /* n n */
    double *aX, *aY;                                                 /* n m */
    double *bX, *bY, *scaled;                                        /* q m, q m, p m */
    double *M, *factor, *other;                                      /* m m */
    double *inverse_lam, *inverse_slack, *d_lam, *d_slack, *h, *rest, *complement; /* m */
    double *block;                                                   /* p q */
    Penalty penalty;
    double *eta, *t, *load, *d_eta, *d_load, *lift, *e1;              /* groups */
    double *own, *apart, *shift;                                      /* p q, p q, m: D of Z, W(lam) less it, what that adds to h */
    int refinements, by_entries;
    Entries entries;
} Step;

double *step_memory(Step *s, int count);                            /* room for a step of so many problems; NULL without */
void bordered(Step *s, const double *lam, double diagonal, double *out);
void combine_rows(Step *s, const double *lam, double *out);         /* sum_k lam_k a_k b_k' */
void values_of(Step *s, const double *W, int ld, double *out);      /* of the rows, at W by columns */
void loads(const Step *s, const double *x, double *out);            /* E x for one number per row */
int factor_schur(Step *s, int order, const signed char *sense);     /* of M, with the smallest shift that works; 0 without */
int nuclear_step(Step *s, double *mu);                              /* 0, or STALLED with all unchanged */
void measure(Step *s, Measures *out);

void place_groups(Step *s);      /* once for each problem, after its penalty is set */
int prepare_entries(Step *s);    /* 0 where there is no factor */
void solve_entries(Step *s);     /* d_lam from h */
Size entries_numbers(const Step *s);
void entries_memory(Step *s, double *memory);

#endif
