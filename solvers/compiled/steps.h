/* What a step of the primal-dual interior point methods does with the rows, whatever the norm and the margin.

   Hard margins:

     minimize  N(W)  subject to  F W - s = c,  s >= 0,     maximize  c . lam  subject to  N*(F' lam) <= 1,  lam >= 0

   with unit rows F; equality rows have no s and a free lam. A step changes lam, s and W together. The norm enters
   through its cone: linearized, its optimality conditions answer a change dD = F' dlam of the dual matrix by

     dW = k + K dD,    so that    (F K F' + Delta) dlam = c + s - F W + (target / lam) - F k,    Delta = diag(s / lam)

   is the one linear system of a step. Steps are Mehrotra's: one that aims at the boundary tells how far the next may
   aim, and its second-order error is made good.

   Soft margins: rows may be violated by w_k eta_j, where j is the group of row k (its query, or the row alone):

     hinge           minimize  N(W) + C sum eta,     F W + w eta - s = c,  eta >= 0,   t = C - E lam >= 0,  t eta = target
     squared hinge   minimize  N(W) + C sum eta^2,   F W + w eta - s = c,              2 C eta = E lam

   with (E lam)_j = sum of w_k lam_k over the group. Then d eta = e0 + e1 E dlam with e1 = eta / t or 1 / (2 C), so that
   the penalty adds one rank-one block e1 w w' per group to Delta, and w e0 to the right side; nothing else changes.

   The system has the order of the rows; where W has fewer entries, the system for dW itself is the smaller one: with
   K = K_0 + side side' / kappa, k = K_0 pre + side lead / kappa and r the right side above without - F k,

     (K_0^-1 + F' Delta^-1 F) dW = pre + K_0^-1 side share + F' Delta^-1 r,      dlam = Delta^-1 (r - F dW),

   where share = (lead + side . dD) / kappa follows from one more equation: its weight 1 / kappa grows without bound and
   would spoil the matrix.

   Matrices are stored as LAPACK wants them, by columns; rows F (m, N) of NumPy are columns of F'. */
#ifndef ATTSVM_STEPS_H
#define ATTSVM_STEPS_H

#include <stddef.h>

/* Of sizes and of places in arrays: as wide as an address. `long` has 32 bits on Windows. */
typedef ptrdiff_t Size;

/* Bytes of so many numbers. */
static inline size_t doubles(Size count) { return sizeof(double) * (size_t)count; }
static inline size_t ints(Size count) { return sizeof(int) * (size_t)count; }

/* fmax of a number and whatever x is, without the call that its rules about NaN need. */
static inline double larger(double most, double x) { return x > most ? x : most; }

#ifdef _WIN32
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

/* BLAS and LAPACK as SciPy ships them: the order is that of ROUTINES in kernels.py. */
typedef struct {
    void (*gemm)(const char *, const char *, const int *, const int *, const int *, const double *, const double *,
                 const int *, const double *, const int *, const double *, double *, const int *);
    void (*gemv)(const char *, const int *, const int *, const double *, const double *, const int *, const double *,
                 const int *, const double *, double *, const int *);
    void (*syrk)(const char *, const char *, const int *, const int *, const double *, const double *, const int *,
                 const double *, double *, const int *);
    void (*symv)(const char *, const int *, const double *, const double *, const int *, const double *, const int *,
                 const double *, double *, const int *);
    void (*trsm)(const char *, const char *, const char *, const char *, const int *, const int *, const double *,
                 const double *, const int *, double *, const int *);
    void (*potrf)(const char *, const int *, double *, const int *, int *);
    void (*potrs)(const char *, const int *, const int *, const double *, const int *, double *, const int *, int *);
    void (*syevd)(const char *, const char *, const int *, double *, const int *, double *, double *, const int *, int *,
                  const int *, int *);
    void (*gesdd)(const char *, const int *, const int *, double *, const int *, double *, double *, const int *,
                  double *, const int *, double *, const int *, int *, int *);
    void (*gesv)(const int *, const int *, double *, const int *, int *, double *, const int *, int *);
    void (*geqrf)(const int *, const int *, double *, const int *, double *, double *, const int *, int *);
    void (*orgqr)(const int *, const int *, const int *, double *, const int *, const double *, double *, const int *,
                  int *);
} Routines;

extern Routines lapack;

enum { INEQUALITY = 1, EQUALITY = 0, VOID = -1 };
enum { HARD, HINGE, SQUARED };

/* What violated rows cost; all rows are inequalities unless the margin is hard. */
typedef struct {
    int loss, groups;
    const int *group;     /* of each row */
    const double *weight; /* w, one per row */
    double C;
} Penalty;

/* One problem, the point where its method stands, and the best one so far. */
typedef struct {
    int m, N;               /* rows, entries of W */
    int p, q;               /* shape of W */
    const double *F, *c;    /* unit rows (m, N) and right-hand sides (m,) */
    const double *left, *right_factors; /* factors of the unit rows, (m, p) and (m, q) */
    const signed char *sense;
    double *W, *lam, *slack; /* the point */
    double *D, *residual;   /* F' lam and c + slack - F W (less w eta) there */
    double *M, *factor, *ridge, *inverse; /* the system of a step */
    double *aimed, *pull, *right, *dlam, *dslack; /* products of the rows that a direction aims at, and what it is */
    Penalty penalty;
    double *eta, *t, *load, *deta, *dload; /* slacks of the groups, their multipliers, E lam, and changes */
    double *aimed_eta, *e0, *e1;           /* products eta t aimed at; d eta = e0 + e1 E dlam */
    int by_entries;         /* the system has the order of the entries of W */
    double *P, *P_factor;   /* N N: the inverse of K as the norm gives it, then completed; its factor */
    double *half, *y;       /* m N: rows times a root of Delta^-1; N: dW */
    double *diagonal, *room; /* m: of the inverse of Delta, without the penalty; m */
    int *order, *begin;     /* m and groups + 2: rows by group */
    double *pre;            /* N: K_0^-1 (k - side lead / kappa), which the norm sets before solve_rows */
    const double *side;     /* N: K is K_0 + side side' / kappa; NULL without that part */
    double *side_up;        /* N: K_0^-1 side, set by the norm */
    double kappa, lead, stiff, share; /* lead: set by the norm; share: (lead + side . dD) / kappa, without the division */
    double *tip, *side_lam, *side_W;  /* m, m, N: F side, and what the multipliers and W answer to a share of 1 */
    double *best_W, *best_lam;
    double apart;           /* largest entry of D less the dual matrix of the cone */
    double best;            /* larger of gap and miss at the best point */
    int waited, steps;
    const volatile int *stop; /* another thread asks for what was reached by setting it */
} State;

/* Numbers of working memory that a state takes, and the state on such memory; sizes, penalty and by_entries must be set. */
Size state_numbers(const State *state);
void state_begin(State *state, double *memory);

double dot(int n, const double *x, const double *y);
void margins(const State *state, const double *W, double *out);        /* F W */
void adjoint(const State *state, const double *lam, double *out);      /* F' lam */
int cholesky(int n, double *A);                                        /* the lower factor, in place; 0 without */
int raised_cholesky(int n, const double *A, double *factor);           /* 1 where A has one up to rounding */
void cholesky_solve(int n, const double *factor, double *x);

int pairs_of_rows(const State *state);            /* complementary pairs */
void measure_rows(State *state);                  /* D, loads and residual of the point */
int prepare_rows(State *state);                   /* M = F K F' or P = K^-1 is completed and factored; 0 without a factor */
void solve_rows(State *state, const double *k);   /* changes for the products aimed at, where W answers k */
double slope(int n, const double *point, const double *change);
double primal_slope(const State *state);          /* inverse of the longest step that keeps the slacks positive */
double dual_slope(const State *state);            /* and of the multipliers */
double row_products(const State *state, double primal, double dual);   /* slack . lam + eta . t after such steps */
void aim_rows(State *state, double target);       /* from the last direction to the products of the next one */
double penalty_value(const State *state);         /* C sum eta or C sum eta^2 */
double dual_value(const State *state);            /* c . lam less the conjugate of the penalty */
double aim(double ahead, double now, int pairs, int exponent);
void move_rows(State *state, double primal, double dual);
void offer(State *state, double gap);             /* the point is the best so far, or it is not */
int goes_on(const State *state, int most, double goal);

/* The methods: 0 where the problem is left as it was for want of memory. */
int minimize_frobenius(State *state, int most, double goal); /* |W|^2 / 2 */
int minimize_bounds(State *state, int shared, int most, double goal);
int minimize_power(State *state, double power, int most, double goal);
int minimize_soft_power(State *state, double power, int most, double goal);
int minimize_spectral(State *state, int most, double goal);

/* From an interior point of the l_1 or (shared bounds) l_inf norm to its vertex: 1 where that is the best point now. `room`
   are r - W and r + W, `dual` their multipliers. */
Size vertex_numbers(int m, int N);
int find_vertex(State *state, int shared, double gap, const double *room, const double *dual, double *memory,
                int *pivots);

#endif
